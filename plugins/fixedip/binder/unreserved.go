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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/plugins/fixedip/cache"
	"fixedip.io/fixedip/plugins/fixedip/requeue"
)

// liveCheckTimeout bounds the look at the API server for a pod that opted out.
const liveCheckTimeout = 2 * time.Second

// blockedNode is a node that cannot take a pod without a fixed address. The agent matches by name: it would assign the
// pod an address that is reserved for its name, which is not the pod's or which another pod may use.
type blockedNode struct {
	node, why string
}

// findUnreserved plans for a pod without a fixed address. Pods of the host's network get no address.
func (b *Binder) findUnreserved(ctx context.Context, pod *corev1.Pod) (*Plan, error) {
	p := &Plan{unreserved: true, uid: pod.UID}
	if p.exempt = pod.Spec.HostNetwork; p.exempt {
		return p, nil
	}
	p.optedOut = identity.OptsOut(pod.Annotations) && b.mayHaveHad(pod)
	held := b.Cache.Ledger.Held(pool.OwnerKey(pod.Namespace, pod.Name))
	if len(held) == 0 {
		return p, nil
	}
	owner := b.controllerOf(pod)
	if identity.OptsOut(pod.Annotations) {
		if reason := b.releasing(ctx, pod, owner, held); reason != "" {
			wake := requeue.WakeOn{Workload: resourceOf(pod)}
			blocked, more := b.blockedBy(pod, owner, held)
			if len(blocked) > 0 {
				reason += "; " + blocked[0].why
			}
			return nil, &Refusal{Reason: reason, WakeOn: more.Merge(wake)}
		}
	}
	p.blocked, _ = b.blockedBy(pod, owner, held)
	return p, nil
}

// mayHaveHad reports whether a pod of this name could have had a fixed address: its workload is of a kind whose pods
// keep their names, or it has none.
func (b *Binder) mayHaveHad(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return true
	}
	kind, known := b.Cache.Kinds.Of(groupKind(owner))
	return known && kind.Identity != identity.Slot
}

func groupKind(owner *metav1.OwnerReference) schema.GroupKind {
	return schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).GroupKind()
}

// controllerOf returns what controls a pod, past a ReplicaSet; nil: nothing.
func (b *Binder) controllerOf(pod *corev1.Pod) *metav1.OwnerReference {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner != nil && owner.Kind == identity.ReplicaSets.Kind && b.Cache.Workloads != nil {
		if by, seen := b.Cache.Workloads.Controller(pod.Namespace, *owner); seen && by != nil {
			return by
		}
	}
	return owner
}

// reservedFor reports whether an entry with this workload is for the pods of the owner.
func reservedFor(owner *metav1.OwnerReference, kind, name string) bool {
	return owner != nil && identity.Label(groupKind(owner)) == kind && owner.Name == name
}

// blockedBy returns the nodes that cannot take the pod, and what helps it. An entry whose resource names no workload
// was written by hand for just this pod; an unreserved entry is for no other pod either.
func (b *Binder) blockedBy(pod *corev1.Pod, owner *metav1.OwnerReference, held []ledger.NodeAddresses) (blocked []blockedNode, wake requeue.WakeOn) {
	wake.Owner = pool.OwnerKey(pod.Namespace, pod.Name)
	for _, h := range held {
		if kind, name, ok := b.Cache.Ledger.EntryOf(h).WorkloadRef(); ok && kind != pool.UnreservedKind && !reservedFor(owner, kind, name) {
			blocked = append(blocked, blockedNode{h.Node, "node(s) kept an address for the pod's name, for a workload that it does not belong to"})
			continue
		}
		if refusal := b.usedByOthers(pod, h.Node, h.Addrs); refusal != nil {
			blocked = append(blocked, blockedNode{h.Node, "node(s) couldn't take a pod of this name: " + refusal.Reason})
			wake = wake.Merge(refusal.WakeOn)
		}
	}
	return blocked, wake
}

// releasing says why a pod that opted out waits: the agent would assign it the address that its name has. The
// controller releases that once no pod has it. What a FixedIP reserves for a while or for good, or for the next pod
// because the workload has opted in again, is not waited for; other addresses of the name are.
func (b *Binder) releasing(ctx context.Context, pod *corev1.Pod, owner *metav1.OwnerReference, held []ledger.NodeAddresses) string {
	for _, h := range held {
		kind, name, ok := b.Cache.Ledger.EntryOf(h).WorkloadRef()
		if !ok || !reservedFor(owner, kind, name) {
			continue
		}
		fip, err := b.Cache.FixedIP(ctx, pod.Namespace, pod.Name)
		if err != nil {
			continue
		}
		released, optedIn := h.Addrs, b.optsIn(pod.Namespace, owner)
		switch {
		case fip == nil && optedIn:
			continue
		case fip != nil && fip.DeletionTimestamp == nil && (optedIn || fip.Spec.Reclaim.WhenDeleted == v1alpha1.Retain || fip.Spec.Reclaim.TTL.Duration > 0):
			released = address.Besides(h.Addrs, fip.Spec.IPs)
		}
		if len(released) > 0 {
			return fmt.Sprintf("its former address (%s on node %s) is being released, since it opted out (annotation %s); it is placed when that is done", address.Join(released), h.Node, identity.AnnotationEnabled)
		}
	}
	return ""
}

// optsIn reports whether the workload exists, and the next pods that it creates do not opt out.
func (b *Binder) optsIn(namespace string, owner *metav1.OwnerReference) bool {
	if b.Cache.Workloads == nil {
		return false
	}
	workload, err := b.Cache.Workloads.Get(groupKind(owner), namespace, owner.Name)
	return err == nil && workload != nil && !identity.OptsOut(workload.Template)
}

// fitsUnreserved accepts the nodes that are not blocked, and of the strict ones those with room for the pod.
func (b *Binder) fitsUnreserved(p *Plan, pod *corev1.Pod, node *corev1.Node) error {
	if i := slices.IndexFunc(p.blocked, func(n blockedNode) bool { return n.node == node.Name }); i >= 0 {
		return &Refusal{Reason: p.blocked[i].why}
	}
	if p.exempt || !b.strict.has(node.Name) {
		return nil
	}
	if !b.Cache.Ready() {
		return ErrNotReady
	}
	for _, f := range b.families {
		if b.Cache.Ledger.Available(node.Name, f) > 0 || b.holds(pod, node.Name) {
			continue
		}
		p.lacked.Store(true)
		return noStrictRoom[f]
	}
	return nil
}

func (b *Binder) holds(pod *corev1.Pod, node string) bool {
	return slices.ContainsFunc(b.Cache.Ledger.Held(pool.OwnerKey(pod.Namespace, pod.Name)), func(h ledger.NodeAddresses) bool { return h.Node == node })
}

// wakeOnUnreserved returns what helps a pod without a fixed address that no node could take; nil: nothing here.
func (b *Binder) wakeOnUnreserved(p *Plan, pod *corev1.Pod) *requeue.WakeOn {
	if len(p.blocked) == 0 && !p.lacked.Load() {
		return nil
	}
	owner := pool.OwnerKey(pod.Namespace, pod.Name)
	_, wake := b.blockedBy(pod, b.controllerOf(pod), b.Cache.Ledger.Held(owner))
	if p.lacked.Load() {
		wake.Room = &requeue.Room{Strict: true}
	}
	return &wake
}

// confirmUnreserved looks at the API server whether the pool of the node has an entry for the name of a pod that opted
// out that the watch does not show yet: the former pod of the name may have got one. If the API server does not
// answer in time, the pod is bound: the controller repairs what was missed.
func (b *Binder) confirmUnreserved(ctx context.Context, p *Plan, pod *corev1.Pod, node string) error {
	if !p.optedOut {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, liveCheckTimeout)
	defer cancel()
	owner := pool.OwnerKey(pod.Namespace, pod.Name)
	planned := b.planned(owner, node)
	n, err := b.Cache.Pools.Read(ctx, node)
	if err != nil {
		if !errors.Is(err, cache.ErrNodeGone) {
			klog.FromContext(ctx).Error(err, "Pod without a fixed address is bound without a look at the pool", "pod", klog.KObj(pod), "node", node)
		}
		return nil
	}
	has := n.Owns(owner)
	if len(has) == 0 {
		return nil
	}
	wake := requeue.WakeOn{Owner: owner, Nodes: []string{node}}
	if err := n.CheckBinding(owner, planned); err != nil {
		return &Refusal{Reason: err.Error(), WakeOn: wake}
	}
	if err := acknowledged(n, has); err != nil {
		return &Refusal{Reason: err.Error(), WakeOn: wake}
	}
	return nil
}
