// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package binder decides which node and which addresses a pod gets, and claims the addresses before the pod is bound.
// It is to addresses what the SchedulerVolumeBinder is to volumes.
//
// It knows nothing of the scheduler framework and of CiliumNodes. It reads from the cache; the API server is only
// written to, and read, by Bind, and its only writes are claims. All that it remembers can be learned again from the API.
package binder

import (
	"context"
	"iter"

	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/plugins/fixedip/requeue"
)

// Interface is what the plugin needs to place a pod. The whole algorithm is:
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
type Interface interface {
	// Find plans for a pod. It has no side effect but that a pod may become one that searches for a slot.
	Find(ctx context.Context, pod *corev1.Pod) (*Plan, error)
	// Fits returns a *Refusal if the node cannot take the pod. It has no side effect.
	Fits(plan *Plan, pod *corev1.Pod, node *corev1.Node) error
	// Scores reports whether the free addresses of nodes matter for the plan.
	Scores(plan *Plan) bool
	// Score returns how much of a node is free, from 0 to 1.
	Score(plan *Plan, node string) float64
	// Assume reserves the addresses for the pod.
	Assume(plan *Plan, pod *corev1.Pod, node string) error
	// Forget drops the reservation of Assume. It may be called at any time, and does no I/O.
	Forget(pod *corev1.Pod)
	// Claimed reports whether Bind has nothing to do.
	Claimed(plan *Plan, pod *corev1.Pod) bool
	// Bind claims the addresses.
	Bind(ctx context.Context, plan *Plan, pod *corev1.Pod, node string) error
	// Explain says why no node could take the pod. refused returns the reasons for one node.
	Explain(plan *Plan, pod *corev1.Pod, refused func(node string) []string) Explanation
	// MayUse reports whether a node that is new may take a pod that was refused.
	MayUse(pod *corev1.Pod, node string) bool
	// Remove drops all that is remembered of a pod.
	Remove(pod *corev1.Pod)
	// AnyStrict reports whether there is a node on which pods without a fixed address need a claim.
	AnyStrict() bool
	// Domain returns what the queue of waiting pods asks.
	Domain() requeue.Domain
}

// Snapshot is the nodes and pods of the scheduling cycle. Only Find, Assume and Explain, which the scheduler calls one
// after the other, may use it.
type Snapshot interface {
	// Node returns nil if the node does not exist.
	Node(name string) *corev1.Node
	// PodsOn yields the pods of a node.
	PodsOn(name string) iter.Seq[*corev1.Pod]
}

// Refusal is an error that says why a pod cannot be placed, and what may help it.
type Refusal struct {
	// Reason is shown in the pod's events.
	Reason string
	WakeOn requeue.WakeOn
}

func (r *Refusal) Error() string { return r.Reason }

// LostError is the error of Bind if the addresses went to another pod, or may be in use. The next cycle decides again.
type LostError struct{ Reason string }

func (e *LostError) Error() string { return e.Reason }

// Explanation is why a pod waits.
type Explanation struct {
	// Reason is shown in the pod's events; empty: the scheduler's own words say all.
	Reason string
	// WakeOn is what helps the pod; nil: nothing that the binder knows of.
	WakeOn *requeue.WakeOn
	// Retry: the pod is to be tried again at once, on all nodes.
	Retry bool
}
