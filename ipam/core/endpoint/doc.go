// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package endpoint judges the CiliumEndpoint of a pod: what is wrong with it, when to act, and whether a pod without one
// may be evicted for that.
//
// It is pure: it has no client, clock, goroutine or context.
package endpoint
