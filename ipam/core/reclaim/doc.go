// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package reclaim decides what the controller does next about one FixedIP and the pool entries of its pod: record a
// claim, write the entries of recorded addresses, report, and release.
//
// The package is pure: the result of Decide depends only on its argument. It must not read a cache, call an API or read a
// clock. Each action is at most one write, so that an interrupted controller continues from the state in the API server.
//
// A FixedIP always names the same pod, unless it is that of a slot. The FixedIP of a slot names the holder: when the
// scheduler writes the entries for the next pod, State.Holder becomes that pod, and the FixedIP is updated. Both kinds of
// FixedIPs have the same states:
//
//	            claim recorded                  deleted, by a user or by the reclaim policy
//	Unrecorded ---------------> Active ------------------------------------------> Deleting -----> gone
//	    |                       |    ^                                               |
//	    | for example, pod and  |    | update, allocate,                             | release the entries,
//	    | workload are deleted  +----+ release superseded entries,                   | then remove the finalizer
//	    v                              report                                        v
//	 released                                                                     released
//
// In each state the first rule that applies decides. The rules are, in this order:
//
//	Unrecorded: the claim has no FixedIP
//	  opted out          the workload opted out of fixed addresses: wait while a pod exists that has not opted out or
//	                     may use the addresses, then release all; entries that a user wrote stay
//	  stale move         a move was only prepared, and its pod does not exist: release the move target
//	  reserved by hand   a user wrote the entry for a workload that does not exist yet: wait
//	  gone               neither the workload nor a pod exists: release all
//	  workload unknown   the pod exists and its workload does not: wait until the pod is deleted
//	  scaled down        no pod exists, the workload has no such replica or does not need the slot, and whenScaled is
//	                     Delete: release all, unless a user wrote the entries
//	  bound elsewhere    a slot's pod was bound to another node: release the claim
//	  named elsewhere    the FixedIP of another pod names a claimed address, and the pod of the claim does not exist, or
//	                     runs without the claimed addresses: release all, unless a user wrote the entries
//	  vacant claim       a slot has no pod: create the FixedIP, so that the slot can be taken over
//	  recordable         the pod is bound to the node of the claim, and has IPs or requested the addresses: create the
//	                     FixedIP; also, except for a slot, if the pod is unschedulable and has not opted out, no other
//	                     node has a claim for it, and the failover policy is Migrate
//
//	Active: the FixedIP exists and is not being deleted
//	  spec               the spec, the finalizer or the UID annotation is out of date: update
//	  expired            the reclaim policy requires the release, the TTL is over, and no blocker exists: delete
//	  unexpected         entries for other addresses exist, in place of the recorded ones or in addition to them, and no
//	                     pod relies on these entries: release them
//	  stale move         a move was only prepared, and its pod does not exist: release the move target
//	  allocate           recorded addresses have no entry, and no blocker exists: write the entries; first withdraw
//	                     addresses that the pod runs with and whose entries are dynamic
//	  expiring           the reclaim policy requires the release, but the TTL is not over or a blocker exists: report
//	                     the time of the release, if there is a TTL
//	  reassigned         the policy is Reassign, and the pod has entries for other addresses on its node and runs with
//	                     none of the recorded ones: replace the FixedIP
//	  superseded         the pod is bound to the recorded node, which has its entries, and other nodes have entries of
//	                     other claims or moves: release the entries on the other nodes
//	  unused entries     the pool of the pod's node has entries for other addresses, in place of the recorded ones or in
//	                     addition to them, and the pod runs with none of these other addresses: release them
//	  unused move        a move is prepared, and the pod runs without the addresses of the move or opted out: release
//	                     the move target
//	  report             report the status
//
//	Deleting: the FixedIP is being deleted
//	  foreign            the FixedIP does not have the finalizer of fixedip: nothing
//	  slot in use        a slot waits until it has no pod: name the holder in the spec, and report
//	  release            release every entry except those that the pod may rely on at its node
//	  blocked            an entry must not be released, because another pod uses its address: wait until the deadline
//	  move pending       the pod does not run yet, and a move is prepared for it on its node: wait until the deadline
//	  home missing       another node may use the addresses, and their home has no CiliumNode with the subnet: wait
//	                     until the deadline
//	  done               no pod is bound, or the pod has entries for other addresses instead: remove the finalizer
//	  in use             the pod may use the addresses of its entries: report
//	  maybe in use       the pod may run with the addresses, although its node has no entry for them: wait until the
//	                     deadline
//	  overdue            the pod runs without the addresses, or the deadline is over: remove the finalizer
//
//	Active, if there is nothing to write: actions that need evidence from an agent
//	  withdrawn          the pod runs with recorded addresses in their cooldown, and no other pod has them: write the
//	                     entries
//	  vacant             the former pod of a slot has stopped: report that another pod may take over
//	  stranded           the pod is unschedulable, and its addresses are unused: report that the pod may move (Migrate)
//
// Usually a FixedIP is created when the pod is bound to the node of its claim and has IPs, and not before. Two claims for one
// pod are possible if a scheduler dies between the claim and the bind, and the next scheduler reads an old cache. The
// bind decides which claim counts. If that claim has several addresses of one family, the IPs of the pod decide which
// of them counts. If a user requested the addresses, the bind is enough. The rules "vacant claim" and "recordable"
// (Migrate) also record claims whose pod does not exist or was never bound.
//
// If a workload is deleted, an address is released only when its pod does not exist either: deleting a StatefulSet with
// --cascade=orphan keeps the addresses of its pods. A FixedIP whose owner has no UID was created by a user, or restored from
// a backup, before its workload existed: that workload does not count as deleted.
package reclaim
