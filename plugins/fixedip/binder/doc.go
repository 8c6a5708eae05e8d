// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package binder decides which node and which addresses a pod gets, and claims the addresses before the pod is bound.
// It is to addresses what the SchedulerVolumeBinder is to volumes.
//
// Of the scheduler framework it knows only the nodes of a cycle, and of CiliumNodes only the pools. It decides from the
// cache. Only Bind calls the API server: it reads nodes, pods and pools, writes claims and migrations into pools, and a MAC
// address into a pod that asks for one. All that a Binder remembers can be learned again from the API. The whole algorithm
// is:
//
//  1. Find looks for the pod's reservation: in the pools, which decide, or else in its FixedIP. With a reservation, the
//     plan has the one node that has the addresses (their home, or the node that they were migrated to). Without one, the
//     plan has the nodes whose subnets contain the addresses that the pod requests, or all nodes. A pod without a stable
//     name takes over a free slot of its workload, unless as many other pods search for the free slots (see slots.go).
//  2. Fits decides for each node. The nodes of the plan only save work: the scheduler tries a nominated node through Fits
//     alone.
//  3. If no node fits, Explain returns the reason and the causes that the pod waits for. If the pod's node cannot take it
//     and its failover policy allows another node, the next Find plans with all nodes, provided that the former pod has
//     stopped.
//  4. Score prefers the nodes with a larger share of free addresses, so that subnets fill evenly.
//  5. Assume reserves the addresses on the chosen node in memory, so that no other pod gets them.
//  6. Bind writes the claim into the node's pool, with one patch that succeeds only if the pool is still what the
//     decision read. The claim counts in the cache from the answer on, even if the watch is late: if the pod is not bound
//     then, its next Find plans with the node of the claim. For a pod that migrates, Bind moves the addresses (see
//     pool.Move). For a restart in place it writes nothing: see Claimed.
//  7. Forget drops what Assume did. A claim that was written stands.
//
// Binding invariant: a pod is bound to a node only if the entries of the node that name the pod are exactly those planned
// for it. For a pod without a fixed address none is planned, unless the node is strict.
//
// Errors are of three kinds: a *Refusal if a change may help the pod, a *LostError if the pod has to be tried again, and any
// other error if something failed.
package binder
