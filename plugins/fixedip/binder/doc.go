// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package binder decides which node and which addresses a pod gets, and claims the addresses before the pod is bound.
// It is to addresses what the SchedulerVolumeBinder is to volumes.
//
// Of the scheduler framework it knows the nodes of a cycle only, and of CiliumNodes the pools. It reads from the cache;
// the API server is only written to, and read, by Bind, and its only writes are claims. All that it remembers can be
// learned again from the API. The whole algorithm is:
//
//  1. Find looks for the pod's reservation: in the pools, which decide, or else in its FixedIP. With one, the plan is
//     the one node that owns the addresses (their home, or the node that they were migrated to). Without one, the plan
//     is the nodes whose subnets have what the pod requests, or all nodes. A pod without a stable name takes over a
//     slot of its workload whose pod is gone, if there is one that no other pod looks for (see slots.go).
//  2. Fits decides for each node. Find only narrows: the scheduler tries a nominated node through Fits alone.
//  3. If no node fits, Explain says why, and what the pod waits for. If the pod's node cannot take it and its failover
//     policy allows that, it has the next Find plan with all nodes, provided that the former pod provably stopped.
//  4. Score prefers the nodes with more free addresses, so that subnets fill evenly.
//  5. Assume reserves the addresses on the chosen node in memory, so that no other pod gets them.
//  6. Bind writes the claim into the node's pool, with one patch that only succeeds if the pool still is what the
//     decision read. The claim counts in the cache from the answer on, also if the watch is late: if the pod is not
//     bound then, its next Find plans with the node of the claim. For a pod that migrates, Bind moves the addresses
//     (see pool.Move). A pod that returns to its node writes nothing: see Claimed.
//  7. Forget drops what Assume did. A claim that was written stands.
//
// A pod is bound to a node only if the entries of the node for its name are exactly those planned for it; none for a
// pod without a fixed address, unless the node is strict.
//
// Errors are of three kinds: a *Refusal if a change may help the pod, a *LostError if the pod has to be tried again,
// and any other error if something failed.
package binder
