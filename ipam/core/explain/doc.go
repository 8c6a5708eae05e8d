// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package explain describes where the address of a pod is, why the pod waits, or why an address is still reserved, and gives
// advice. It also describes the use of one address, the effect of a drain on the pods of a node, and the effects of reserving,
// releasing and moving an address.
//
// It is pure and decides nothing: the caller reads the objects, and the text describes the next step of the scheduler or of
// the controller, or the reason why that step is blocked.
package explain
