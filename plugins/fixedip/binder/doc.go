// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package binder decides which node and which addresses a pod gets, and claims the addresses before the pod is bound.
// Its role for addresses is that of the SchedulerVolumeBinder for volumes.
//
// The package depends on the scheduler framework only for the nodes of a cycle, and on CiliumNodes only for the pools.
// It decides from the cache. Only Bind calls the API server: Bind reads nodes, pods and pools, writes claims and
// migrations into pools, and writes a MAC address into a pod that requests one. A Binder has no state that must survive
// a restart of the scheduler. The algorithm:
//
//  1. Find looks for the pod's reservation: in the pools, which take precedence, or else in the pod's FixedIP. With a
//     reservation, the plan has the one node that has the addresses (their home, or the node that they were migrated
//     to). Without a reservation, the plan has the nodes whose subnets contain the addresses that the pod requests, or
//     all nodes. A pod without a stable name takes over a free slot of its workload, unless at least as many other pods
//     search for a slot as slots are free (see slots.go).
//  2. Fits decides for each node. The nodes of the plan are only an optimization: if the pod is nominated to a node, the
//     scheduler calls Fits for that node even if the plan does not have it.
//  3. If no node fits, Explain returns the reason and the causes that the pod waits for. The next Find plans with other
//     nodes if the node of the reservation cannot take the pod, the failover policy allows another node, and the former pod
//     has stopped.
//  4. Score prefers the nodes with a larger share of free addresses, so that subnets fill evenly.
//  5. Assume counts a claim of the addresses on the chosen node in memory, so that no other pod gets them.
//  6. Bind writes the claim into the node's pool, with one patch that succeeds only if the spec of the CiliumNode is
//     unchanged since the decision read it. The claim counts in the cache as soon as the API server has responded, even
//     if the watch is late: if binding the pod fails afterwards, the next Find plans with the node of the claim. For a
//     pod that migrates, Bind moves the addresses (see pool.Move). If the pod has a FixedIP that does not name the node
//     yet, the pod is bound in a later cycle, when the FixedIP names the node (ADR 0031). For a restart in place, Bind
//     writes no claim: see Claimed.
//  7. Forget drops the claim that Assume made in memory. An entry that was written stays in the pool.
//
// Binding invariant: a pod is bound to a node only if the entries of the node that name the pod are exactly those
// planned for the pod. For an unreserved pod no entry is planned, unless the node is strict or its pool already has an
// entry that is for this pod (see blockedBy). If addresses have moved and the pod has a FixedIP, the FixedIP must name the
// node too.
//
// Errors are of three kinds: a *Refusal means that a change may help the pod, a *LostError that the pod has to be tried
// again, and any other error that something failed.
package binder
