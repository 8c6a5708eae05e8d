// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package fixedip reconciles the FixedIPs of all identities: it creates the FixedIP of a claim, allocates recorded
// addresses, reports the status, and releases addresses.
//
// A request names an identity, by the namespace and name of its pod and FixedIP, or a workload with slots, as "Kind/name":
// how many slots the workload needs can only be decided for all of them together. Both are decided by reclaim.Decide, whose
// documentation draws the state machine, and performed by the same code: a StatefulSet pod is a slot whose holder never
// changes.
//
// Each reconcile performs one action for each identity or slot. The action changes an object, and the watch event of that
// change starts the next reconcile. An action that releases or allocates is decided again from the API server, because the
// caches may be out of date and a released address may be lost. If an identity with a FixedIP releases all that it has on a
// node, package release does that in the batch of the node.
//
// The package may not decide about an address by itself. No decision about an address depends on state that only its memory
// has.
package fixedip
