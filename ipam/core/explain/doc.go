// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package explain describes where the address of a pod is, why the pod waits, or why an address is still
// reserved, and what would help.
//
// It is pure and decides nothing: the caller reads the objects, and the text describes the next step of the scheduler or of
// the controller, or the reason why that step is blocked.
package explain
