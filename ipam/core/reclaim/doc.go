// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package reclaim decides what the controller does next about one FixedIP and the pool entries of its pod: record a
// claim, allocate what is recorded, report, and release.
//
// It is pure: Decide answers from its argument alone. It may not read a cache, call an API or look at a clock. Each
// action is at most one write, so that an interrupted controller continues from what the API server has.
//
// A FixedIP of a StatefulSet pod is a slot whose pod never changes. For slots of other workloads the scheduler hands
// the entries to the next pod, and the FixedIP follows: State.Holder is the pod that the entries name. Both have the
// same states:
//
//	            claim recorded                  deleted, by a user or by the reclaim policy
//	Unrecorded ---------------> Active ------------------------------------------> Deleting -----> gone
//	    |                       |    ^                                               |
//	    | pod and workload      |    | update, allocate,                             | release the entries,
//	    | are gone              +----+ release what is superseded,                   | then remove the finalizer
//	    v                              report                                        v
//	 released                                                                     released
//
// In each state the first rule that applies decides. The rules are, in this order:
//
//	Unrecorded: the claim has no FixedIP
//	  opted out          the workload opted out: release all, once no pod can have the address
//	  stale move         the pod of a move that was only prepared is gone: release the move target
//	  reserved by hand   a user wrote the entry for a workload that does not exist yet: wait
//	  gone               neither the workload nor a pod exists: release all
//	  workload unknown   a pod without its workload: wait for the pod
//	  scaled down        the workload has no such replica, and its policy says Delete: release all
//	  bound elsewhere    a slot's pod was bound to another node: release the claim
//	  vacant claim       a slot's pod is gone: create the FixedIP, so that the slot can be taken over
//	  recordable         the pod runs, or asked for the claim: create the FixedIP of the claim, also if
//	                     its node cannot take the pod any more and its failover policy is Migrate
//
//	Active: the FixedIP exists and is not being deleted
//	  spec               the spec, the finalizer or the UID annotation is out of date: update
//	  expired            the reclaim policy and the TTL say so, and no blocker does: delete
//	  unexpected         entries stand in place of the recorded addresses, and no pod relies on them: release these
//	  stale move         the pod of a move that was only prepared is gone: release the move target
//	  allocate           recorded addresses have no entry, and nothing is in the way: write the entries, or
//	                     withdraw first what the pool offers to all pods and the pod runs with
//	  expiring           the addresses are about to be released: report when
//	  reassigned         the pod runs elsewhere with other addresses (Reassign): replace the FixedIP
//	  superseded         the pod is bound, and entries elsewhere are of other claims or moves: release these
//	  beside             the pod runs without what the pool of its node has in place of the recorded addresses, or
//	                     beside them: release it
//	  unused move        the pod runs without what a move prepared, or opted out: release the move target
//	  report             report the status
//
//	Deleting: the FixedIP is being deleted
//	  foreign            the FixedIP has no finalizer of ours: nothing
//	  slot in use        a slot waits for its pod: report
//	  release            release every entry that the pod does not hold on its node
//	  blocked            another pod has an address, or may come to have it: wait
//	  move pending       the pod does not run yet, and a move is prepared for it on its node: wait
//	  home missing       the addresses may be away, and their home has no CiliumNode: wait for it
//	  done               no pod is bound, or it has other addresses: remove the finalizer
//	  in use             the pod holds the addresses: report
//	  maybe in use       the pod may run with the addresses, though no pool has them: wait until the deadline
//	  overdue            remove the finalizer
//
//	Any state, if there is nothing to write: what the agent has to be asked
//	  withdrawn          whether no other pod has a recorded address in cooldown that the pod runs with
//	  vacant             whether the former pod of a slot has stopped, so that another pod may take over
//	  stranded           whether the addresses of a pod that its node cannot take are unused (Migrate)
//
// A FixedIP is created when the pod runs with what was claimed for it, and not before. Two claims for one pod are
// possible: a scheduler dies between the claim and the bind, and its successor reads an old cache. The bind decides
// which one counts, and an agent may not have seen the claim. If a user asked for the address there is nothing to
// wait for. An address is released only if the pod is gone too: deleting a StatefulSet with --cascade=orphan keeps
// the addresses of its pods. A FixedIP whose owner has no UID was made by a user beforehand, or restored before its
// workload: its workload is not gone, it was never there.
package reclaim
