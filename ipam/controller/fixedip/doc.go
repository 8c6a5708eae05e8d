// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package fixedip reconciles the FixedIPs of all identities: it creates the FixedIP of a claim, writes the pool entries of
// reserved addresses, reports the status, and releases addresses.
//
// A request names an identity, by the namespace and name of its pod and FixedIP, or a workload with slots, as
// "Kind/name". The slots of a workload share a request, because the number of slots that the workload needs is decided
// for all of them together. reclaim.Decide decides about identities and slots, and its documentation shows the state
// machine. The same code performs the actions for both: a StatefulSet pod is like a slot whose holder never changes.
//
// Each reconcile performs one action for each identity or slot. The action changes an object, and the watch event of that
// change starts the next reconcile. An action that releases or allocates is decided again from the API server, because the
// caches may be out of date, and an identity that has lost its address may never get that address again. If an action deletes
// a FixedIP whose pod has entries, or releases all entries on one node that belong to a FixedIP in deletion, package
// release performs it in the batch of the node. This package itself performs such actions for slots and moved addresses.
//
// The package does not decide about addresses: reclaim.Decide does. The controller may restart at any time: it decides
// from objects of the API server, and from answers of agents, which it can request again.
package fixedip
