// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package reservation computes the addresses that a FixedIP reserves, and the pool entry that gives them to its pod.
//
// The package is pure: the result of every function depends only on its arguments.
package reservation
