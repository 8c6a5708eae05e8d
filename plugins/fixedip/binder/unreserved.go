// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
	"fixedip.io/fixedip/plugins/fixedip/requeue"
)

// liveCheckTimeout is the time limit for reading a pool for a pod that opted out.
const liveCheckTimeout = 2 * time.Second

// blockedNode is a node that cannot take an unreserved pod, because its pool has an entry for the pod's name. The agent
// matches by name: it would give the pod an address that belongs to another workload, or that another pod may use.
//
// why is the text that follows "node(s)", or the name of the node, in messages.
type blockedNode struct {
	node, why string
}

// findUnreserved plans for a pod without a fixed address. A pod on the host network needs no address, so every node can
// take the pod. findUnreserved returns a *Refusal if the pod opted out and has to wait for a release (see releasing).
func (b *Binder) findUnreserved(ctx context.Context, pod *corev1.Pod) (*Plan, error) {
	p := &Plan{Unreserved: true, exempt: pod.Spec.HostNetwork, id: identity.Identity{Namespace: pod.Namespace, PodName: pod.Name}, uid: pod.UID}
	if p.exempt {
		return p, nil
	}
	owner, optsOut := b.controllerOf(pod), identity.OptsOut(pod)
	// The pod could have had a fixed address under its name if it is a bare pod, or if pods of its workload's kind keep
	// their names.
	kind, known := b.Cache.Kinds.Of(owner.GroupKind())
	p.optedOut = optsOut && (owner.Name == "" || known && kind.Identity != identity.Slot)
	held := b.Cache.Ledger.Held(p.id.Key())
	blocked, wake := b.blockedBy(p, pod)
	if optsOut {
		if reason := b.releasing(ctx, pod, owner, held); reason != "" {
			if len(blocked) > 0 {
				reason += "; node " + blocked[0].node + " " + blocked[0].why
			}
			wake.Keys = slices.Concat(wake.Keys, b.wakeOnWorkload(pod).Keys)
			return nil, &Refusal{Reason: reason, WakeOn: wake}
		}
	}
	p.blocked = blocked
	return p, nil
}

// controllerOf returns the workload that controls a pod: for a pod of a ReplicaSet, the controller of the ReplicaSet if that
// is known. The zero Owner means that the pod has no controller.
func (b *Binder) controllerOf(pod *corev1.Pod) identity.Owner {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return identity.Owner{}
	}
	if owner.Kind == identity.ReplicaSets.Kind {
		if by, seen := b.Cache.Workloads.Controller(pod.Namespace, *owner); seen && by != nil {
			owner = by
		}
	}
	return identity.OwnerFrom(owner)
}

// wakeOnWorkload returns a WakeOn for changes of the workload of a pod; the zero WakeOn if the pod has no controller.
func (b *Binder) wakeOnWorkload(pod *corev1.Pod) requeue.WakeOn {
	owner := b.controllerOf(pod)
	if owner.Name == "" {
		return requeue.WakeOn{}
	}
	return requeue.On(metrics.Workload, owner.Resource(pod.Namespace))
}

// blockedBy returns the nodes that cannot take the unreserved pod, and the causes that may help the pod. A node whose
// pool has an entry with the pod's name for another workload is blocked. Any other entry with the pod's name is for
// this pod: it names the pod's own workload or an unreserved pod, or it names no workload, because it is for a bare pod
// or a user wrote it. Such an entry blocks the node only while another pod uses the address.
func (b *Binder) blockedBy(p *Plan, pod *corev1.Pod) (blocked []blockedNode, wake requeue.WakeOn) {
	owner := b.controllerOf(pod)
	wake = p.wakeOn()
	for _, h := range b.Cache.Ledger.Held(p.id.Key()) {
		kind, name, ok := b.Cache.Ledger.EntryOf(h).WorkloadRef()
		if ok && kind != pool.UnreservedKind && (kind != owner.Label() || name != owner.Name) {
			blocked = append(blocked, blockedNode{h.Node, "had an IP reserved under the pod's name for another workload"})
		} else if refusal := b.usedByOthers(pod, h.Node, h.Addrs); refusal != nil {
			blocked = append(blocked, blockedNode{h.Node, "couldn't take a pod of this name: " + refusal.Reason})
			wake.Keys = slices.Concat(wake.Keys, refusal.WakeOn.Keys)
		}
	}
	return blocked, wake
}

// releasing returns why a pod that opted out has to wait; empty if it need not. The pool may still have an address for
// the pod's name, which the agent would give to the pod; the controller releases that address when no pod uses it. The
// pod does not wait for addresses that stay reserved because of the retention or TTL of the FixedIP, or because the
// workload has opted in again.
func (b *Binder) releasing(ctx context.Context, pod *corev1.Pod, owner identity.Owner, held []ledger.NodeAddresses) string {
	for _, h := range held {
		kind, name, ok := b.Cache.Ledger.EntryOf(h).WorkloadRef()
		if !ok || kind != owner.Label() || name != owner.Name {
			continue
		}
		fip, err := b.Cache.FixedIP(ctx, pod.Namespace, pod.Name)
		if err != nil {
			continue
		}
		// The workload has opted in again if it exists and its next pods do not opt out.
		workload, err := b.Cache.Workloads.Get(owner.GroupKind(), pod.Namespace, owner.Name)
		released, optedIn := h.Addrs, err == nil && workload != nil && !workload.OptsOut()
		switch {
		case fip == nil && optedIn:
			continue
		case fip != nil && fip.DeletionTimestamp == nil && (optedIn || fip.Spec.Reclaim.WhenDeleted == v1alpha1.Retain || fip.Spec.Reclaim.TTLSeconds > 0):
			released = address.Additional(h.Addrs, fip.Spec.IPs)
		}
		if len(released) > 0 {
			return fmt.Sprintf("its former %s on node %s %s being released, and the pod has opted out of fixed addresses (annotation %s); the pod is placed after the release", addressText(released), h.Node, verb(released, "is", "are"), identity.AnnotationEnabled)
		}
	}
	return ""
}

// fitsUnreserved returns nil if the node is not blocked for the pod and, if the node is strict, has an entry or a free
// address for the pod.
func (b *Binder) fitsUnreserved(p *Plan, node *corev1.Node) error {
	if i := slices.IndexFunc(p.blocked, func(n blockedNode) bool { return n.node == node.Name }); i >= 0 {
		return &Refusal{Reason: "node(s) " + p.blocked[i].why}
	}
	switch {
	case p.exempt || !b.onStrictNode(node.Name):
		return nil
	case !b.Cache.Ready():
		return ErrNotReady
	case len(b.Cache.Ledger.HeldOn(p.id.Key(), node.Name)) > 0:
		return nil
	}
	return b.fitsRequested(p, node.Name)
}

// explainUnreserved returns the causes that help an unreserved pod that no node could take; nil if the plugin did not refuse
// the pod on any node.
func (b *Binder) explainUnreserved(p *Plan, pod *corev1.Pod) *Refusal {
	if len(p.blocked) == 0 && !p.lacked.Load() {
		return nil
	}
	_, wake := b.blockedBy(p, pod)
	if p.lacked.Load() {
		wake.FreeAddress = b.wakeOnFreeAddress(p).FreeAddress
	}
	return &Refusal{WakeOn: wake}
}

// confirmOptedOut reads the pool of the node from the API server if the pod opted out. If the pool has entries for the pod's
// name, they must be exactly those that the cache shows, and the agent must report no other pod as the user of their
// addresses. If that is not the case, confirmOptedOut returns a *LostError, because an entry may have been written for the
// former pod of the name. If the pool cannot be read, confirmOptedOut returns nil: the pod is bound, and the controller
// corrects a mismatch later.
func (b *Binder) confirmOptedOut(ctx context.Context, p *Plan, pod *corev1.Pod, node string) error {
	if !p.optedOut {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, liveCheckTimeout)
	defer cancel()
	owner := p.id.Key()
	// planned is read before the pool, so that an entry that is written in between does not count as planned.
	planned := b.Cache.Ledger.HeldOn(owner, node)
	n, err := b.Cache.Pools.Get(ctx, node)
	if err != nil {
		if !errors.Is(err, ciliumpool.ErrGone) {
			klog.FromContext(ctx).Error(err, "Could not read the pool; the pod opted out and is bound without a check of its node", "pod", klog.KObj(pod), "node", node)
		}
		return nil
	}
	if len(n.Owns(owner)) == 0 {
		return nil
	}
	if err := n.CheckBinding(owner, planned); err != nil {
		return &LostError{err.Error() + "; the pod is tried again"}
	}
	return nil
}
