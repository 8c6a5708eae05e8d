// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package fixedip owns FixedIPs of all identities: it creates the FixedIP of a claim, allocates what is recorded,
// reports, and removes what is to be released.
//
// A request names an identity: the namespace and the name of its pod, which is also the name of its FixedIP; or a
// workload with slots, as "Kind/name", since how many slots it needs can only be decided for all of them together. A
// StatefulSet pod is a slot whose holder never changes: both are decided by reclaim.Decide, whose documentation draws
// the state machine, and performed by the same code.
//
// Each reconcile performs one action, and each action changes what the watches show, so that the next one follows. An
// action that takes something away is decided again from the API server: caches may be old, and what is released
// cannot be had back. Releases of all that an identity has on a node go to the batch of that node: see package
// release.
//
// The package may not decide about an address by itself, and keeps nothing in memory that it could not read again.
package fixedip
