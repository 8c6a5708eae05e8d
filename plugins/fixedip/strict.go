// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// parseStrict reads the selector of strict nodes; an empty one chooses none.
func parseStrict(selector string) (labels.Selector, error) {
	if selector == "" {
		return labels.Nothing(), nil
	}
	parsed, err := identity.ParseLabels(selector)
	if err != nil {
		return nil, fmt.Errorf("strictNodes: %w", err)
	}
	return parsed, nil
}

// strictFor tells whether a node is strict for a pod without a fixed address: the pod needs an entry
// of its own there, and can't have one without a claim. Pods of the host's network need none.
func (p *Plugin) strictFor(pod *corev1.Pod, node *corev1.Node) bool {
	return node != nil && !pod.Spec.HostNetwork && p.strict.Matches(labels.Set(node.Labels))
}

// meetsStrict tells whether Filter has to look at the nodes for a pod without a fixed address: one of
// them is strict. It costs less than Filter does where none is.
func (p *Plugin) meetsStrict(pod *corev1.Pod, nodes []fwk.NodeInfo) bool {
	return slices.ContainsFunc(nodes, func(n fwk.NodeInfo) bool { return p.strictFor(pod, n.Node()) })
}

// filterStrict lets a strict node pass that has room in each family for a pod without a fixed
// address, or has an entry for it already.
func (p *Plugin) filterStrict(pod *corev1.Pod, c *cycle, node *corev1.Node) *fwk.Status {
	if !p.strictFor(pod, node) {
		return nil
	}
	if !p.world.ready() {
		return fwk.AsStatus(errNotReady)
	}
	for _, f := range p.families {
		if p.world.ledger.Room(node.Name, f) > 0 || p.world.holds(pod, node.Name) {
			continue
		}
		if c.lacked.CompareAndSwap(false, true) {
			p.waiting.refuse(pod, cause{owner: pool.OwnerKey(pod.Namespace, pod.Name), room: true}, c.decided)
		}
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("strict node(s) had no free %s address for the pod in their subnets", f))
	}
	return nil
}

func (w *world) holds(pod *corev1.Pod, node string) bool {
	for _, h := range w.ledger.Held(pool.OwnerKey(pod.Namespace, pod.Name)) {
		if h.Node == node {
			return true
		}
	}
	return false
}

// reserveStrict decides the address of a pod without a fixed one where the node is strict.
func (p *Plugin) reserveStrict(ctx context.Context, pod *corev1.Pod, c *cycle, nodeName string) *fwk.Status {
	info, err := p.handle.SnapshotSharedLister().NodeInfos().Get(nodeName)
	if err != nil || !p.strictFor(pod, info.Node()) {
		// A node that is gone from the snapshot is not what a pod was just placed on.
		return nil
	}
	owner := pool.OwnerKey(pod.Namespace, pod.Name)
	claim, err := p.world.ledger.AssumeOrdinary(pod.UID, owner, nodeName, p.families)
	if err != nil {
		return p.refuse(pod, cause{owner: owner, node: nodeName, room: true}, c.decided, err.Error())
	}
	p.waiting.settle(pod.UID)
	loggerFrom(ctx).V(4).Info("Address on a strict node decided", "pod", klog.KObj(pod), "node", nodeName, "ips", claim.Addrs)
	return nil
}

// bindStrict writes the claim of a pod without a fixed address into the pool of its strict node.
// Which address it is does not matter: where another was faster, the next will do.
func (p *Plugin) bindStrict(ctx context.Context, pod *corev1.Pod, c *cycle, nodeName string) *fwk.Status {
	claim, ok := p.world.ledger.Claimed(pod.UID)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, p.claimTimeout, fmt.Errorf("not done within claimTimeout %v", p.claimTimeout))
	defer cancel()
	err := p.world.claimOrdinary(ctx, claim, pool.UnreservedEntry(pod.Namespace, pod.Name))
	switch {
	case errors.Is(err, pool.ErrTaken):
		return p.refuse(pod, cause{owner: claim.Owner, node: nodeName, room: true}, c.decided, err.Error())
	case err != nil:
		return fwk.AsStatus(fmt.Errorf("claim an address of the strict node %s for pod %s/%s: %w", nodeName, pod.Namespace, pod.Name, err))
	}
	return nil
}

// claimOrdinary is claim for a pod that takes any address.
func (w *world) claimOrdinary(ctx context.Context, c ledger.Claim, entry pool.Entry) error {
	return w.observed(ctx, c, func() error {
		if w.ledger.Stands(c) {
			return nil
		}
		chosen := c
		err := w.pools.Write(ctx, ciliumpool.Request{
			Node: c.Node,
			Decide: func(n pool.Node) (edits []pool.Edit, err error) {
				edits, chosen, err = w.ledger.Ordinary(n, c, entry)
				return edits, err
			},
			// The controller may have given the pod one.
			Whole: true,
		})
		if err != nil {
			return err
		}
		return w.await(ctx, chosen)
	})
}
