// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package reservation says what a FixedIP reserves: each of its addresses, with the pool entry that gives it to the pod.
//
// It is pure: the result of every function depends only on its arguments. It may not read a cache, call an API or read a
// clock.
package reservation
