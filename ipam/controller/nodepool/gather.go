// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package nodepool

import (
	"context"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/nodepool"
	"fixedip.io/fixedip/ipam/core/nodeutil"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
)

const (
	// defaultPodCapacity is the capacity of a node that does not report how many pods it takes, as in a kubelet.
	defaultPodCapacity = 110
	// restoreWithin is how long an address in cooldown is left for a waiting pod. The controller adopt restores it at
	// the latest in its next resync; two periods include the start of one.
	restoreWithin = 2 * source.ResyncPeriod
)

// gather collects from the caches what the pool of a node is decided from.
func (r *Reconciler) gather(ctx context.Context, n pool.NodePool) (*nodepool.State, error) {
	s := &nodepool.State{
		Now: r.Clock.Now(), Watermark: r.Watermark, CoolDown: r.CoolDown, Capacity: defaultPodCapacity, RestoreWithin: restoreWithin,
		Held: r.heldOn(ctx, n.Name), Reserved: r.Ledger.Kept,
		Elsewhere: func(a netip.Addr) bool { return n.Home(a) && r.Ledger.HasEntryElsewhere(a, n.Name) },
		Needed: func(namespace, name string) bool {
			needed, err := needsEntry(ctx, r.Cached, r.Kinds, n.Name, namespace, name)
			return err != nil || needed
		},
	}
	node, err := r.nodeOf(ctx, n.Name)
	if err != nil {
		return nil, err
	}
	if node != nil {
		s.Strict = r.StrictNodes.Matches(labels.Set(node.Labels))
		if pods, ok := node.Status.Allocatable[corev1.ResourcePods]; ok {
			s.Capacity = pods.Value()
		}
	}
	setReadiness(s, node)
	s.Overdue, s.NextTimeout = r.timeouts.observe(n)
	if len(s.Overdue) > 0 && (node == nil || !nodeutil.IsReady(node)) {
		// No agent is there to answer a new mark. The time has to be checked: a node that gets ready again does not
		// always cause an event for its pool.
		s.Overdue = nil
		if at := s.Now.Add(replyTimeout); s.NextTimeout.IsZero() || at.Before(s.NextTimeout) {
			s.NextTimeout = at
		}
	}
	pods, err := index.PodsOnNode(ctx, r.Cached, n.Name)
	if err != nil {
		return nil, err
	}
	if s.Strict {
		s.Pods, err = r.podAddresses(ctx, pods)
	}
	for i := range pods {
		pod := &pods[i]
		if podutil.AwaitsIP(pod) {
			owner := pool.OwnerKey(pod.Namespace, pod.Name)
			s.Waiting = append(s.Waiting, owner)
			if !identity.OptsOut(pod.Annotations) {
				s.RestoreFor = append(s.RestoreFor, owner)
			}
		}
		if podutil.HoldsIPs(pod) {
			s.PodIPs = append(s.PodIPs, podutil.IPs(pod)...)
		}
	}
	return s, err
}

// setReadiness sets since when a node is ready. If there is no Node, nothing runs there.
func setReadiness(s *nodepool.State, node *corev1.Node) {
	s.NotReady, s.ReadySince = false, time.Time{}
	if node != nil {
		since, ready := nodeutil.ReadySince(node)
		s.NotReady, s.ReadySince = !ready, since
	}
}

// readLive replaces what the caches show of the node and its pods by what the API server has.
func (r *Reconciler) readLive(ctx context.Context, n pool.NodePool, s *nodepool.State) error {
	node, err := index.Node(ctx, r.Live, n.Name)
	if err != nil {
		return err
	}
	setReadiness(s, node)
	pods, err := index.LivePodsOnNode(ctx, r.Live, n.Name)
	if err != nil {
		return err
	}
	cached := s.Held
	s.Held = func(a netip.Addr) bool {
		return cached(a) || slices.ContainsFunc(pods, func(pod corev1.Pod) bool {
			return podutil.HoldsIPs(&pod) && slices.Contains(podutil.IPs(&pod), a)
		})
	}
	if s.Strict {
		live, err := r.podAddresses(ctx, pods)
		if err != nil {
			return err
		}
		// Pods that a DaemonSet created for the node are not bound to it yet.
		for _, p := range s.Pods {
			if len(p.Addrs) == 0 && !slices.ContainsFunc(live, func(l nodepool.PodAddresses) bool { return l.Namespace == p.Namespace && l.Name == p.Name }) {
				live = append(live, p)
			}
		}
		s.Pods = live
	}
	s.Gone = map[string]bool{}
	for _, e := range nodepool.StaleUnreserved(n, s.Needed) {
		namespace, name, _ := pool.SplitOwnerKey(e.Owner)
		needed, err := needsEntry(ctx, r.Live, r.Kinds, n.Name, namespace, name)
		if err != nil {
			return err
		}
		s.Gone[e.Owner] = !needed
	}
	s.Live = true
	return nil
}
