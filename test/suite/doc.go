// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package suite contains helpers for tests that start a control plane.
package suite
