// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package nodepool

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
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
		Held: r.heldOn(ctx, n.Name), Reserved: func(a netip.Addr) bool {
			_, reserved := r.Ledger.ReservedFor(a)
			return reserved
		},
		OnOtherNode: func(a netip.Addr) bool { return n.Home(a) && r.Ledger.HasEntryElsewhere(a, n.Name) },
		Gone:        map[string]bool{},
	}
	for _, e := range nodepool.StaleUnreserved(n, func(namespace, name string) bool {
		needed, err := r.needsEntry(ctx, r.Cached, n.Name, namespace, name)
		return err != nil || needed
	}) {
		s.Gone[e.Owner] = true
	}
	// A pool that is filled before its node is known to be strict would have to be emptied again.
	node, err := index.Node(ctx, r.Cached, n.Name, r.Live)
	if err != nil {
		return nil, err
	}
	if node != nil {
		s.Strict = r.StrictNodes.Matches(labels.Set(node.Labels))
		if pods, ok := node.Status.Allocatable[corev1.ResourcePods]; ok {
			s.Capacity = pods.Value()
		}
	}
	r.setReadiness(s, node)
	s.Overdue, s.NextTimeout = r.observe(n)
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
	s.Waiting = waiting(pods)
	for i := range pods {
		if podutil.HoldsIPs(&pods[i]) {
			s.PodIPs = append(s.PodIPs, podutil.IPs(&pods[i])...)
		}
	}
	return s, err
}

// waiting returns the owner keys of the pods that have not reported an IP. One that is being deleted may have got it.
func waiting(pods []corev1.Pod) (owners []string) {
	for i := range pods {
		if podutil.HoldsIPs(&pods[i]) && !podutil.HasIPs(&pods[i]) {
			owners = append(owners, pool.OwnerKey(pods[i].Namespace, pods[i].Name))
		}
	}
	return owners
}

// setReadiness sets since when a node is ready. If there is no Node, nothing runs there, and no agent is asked.
func (r *Reconciler) setReadiness(s *nodepool.State, node *corev1.Node) {
	s.NotReady, s.ReadySince = false, time.Time{}
	s.Acknowledged = func(pool.NodePool, netip.Addr) bool { return true }
	if node != nil {
		since, ready := nodeutil.ReadySince(node)
		s.NotReady, s.ReadySince, s.Acknowledged = !ready, since, r.acknowledged
	}
}

// acknowledged asks the agent of a node whether it has seen that an address is in cooldown, and reports whether it has
// answered and does not use the address. The pool of the node is looked at again when there is an answer.
func (r *Reconciler) acknowledged(n pool.NodePool, a netip.Addr) bool {
	cooldown := n.Entries[a]
	question := fmt.Sprint("have you seen the cooldown of ", a, " in CiliumNode ", n.UID, cooldown)
	evidence, answered := r.Agents.Ask(n.Name, question, func() { r.Requests.Add(source.ForName(n.Name)) })
	if answered.IsZero() {
		return false
	}
	if _, used := evidence.Used[a]; !used && evidence.Entries[a] == cooldown {
		return true
	}
	// This answer will never do. The agent is asked again.
	r.Agents.Forget(n.Name, question)
	return false
}

// readLive replaces what the caches show of the node and its pods by what the API server has.
func (r *Reconciler) readLive(ctx context.Context, n pool.NodePool, s *nodepool.State) error {
	node, err := index.Node(ctx, r.Live, n.Name)
	if err != nil {
		return err
	}
	r.setReadiness(s, node)
	pods, err := index.LivePodsOnNode(ctx, r.Live, n.Name)
	if err != nil {
		return err
	}
	s.Waiting = waiting(pods)
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
	for owner := range s.Gone {
		namespace, name, _ := pool.SplitOwnerKey(owner)
		needed, err := r.needsEntry(ctx, r.Live, n.Name, namespace, name)
		if err != nil {
			return err
		}
		if needed {
			delete(s.Gone, owner)
		}
	}
	s.Live = true
	return nil
}

// heldOn returns a function that reports whether a pod on the node has an address by the cache, which is earlier than the
// report of the agent.
func (r *Reconciler) heldOn(ctx context.Context, node string) func(netip.Addr) bool {
	return func(a netip.Addr) bool {
		pods, err := index.PodsWithIP(ctx, r.Cached, a)
		return err != nil || slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return p.Spec.NodeName == node })
	}
}

// needsEntry reports whether an unreserved pod needs the entry with its name on a node: it is bound to the node, or not
// bound yet. A pod with an identity gets an entry of its identity, which the other one is in the way of.
func (r *Reconciler) needsEntry(ctx context.Context, from client.Reader, node, namespace, name string) (bool, error) {
	pod, err := index.Get[corev1.Pod](ctx, from, client.ObjectKey{Namespace: namespace, Name: name})
	if err != nil || pod == nil || podutil.IsTerminal(pod) {
		return false, err
	}
	if place := identity.PodNode(pod); place != "" {
		return place == node, nil
	}
	_, fixed, err := identity.Of(pod, r.Kinds, identity.NoControllers)
	return err != nil || !fixed, nil
}

// podAddresses returns the pods among pods that have IPs or need some, except those with a FixedIP: the controller fixedip
// adds their entries. A pod that opted out does not get what a FixedIP of its name retains.
func (r *Reconciler) podAddresses(ctx context.Context, pods []corev1.Pod) ([]nodepool.PodAddresses, error) {
	var list []nodepool.PodAddresses
	for i := range pods {
		pod := &pods[i]
		if pod.Spec.HostNetwork || pod.DeletionTimestamp != nil || podutil.IsTerminal(pod) {
			continue
		}
		record, err := index.Get[v1alpha1.FixedIP](ctx, r.Cached, client.ObjectKeyFromObject(pod))
		if err != nil {
			return nil, err
		}
		if record != nil && len(record.Spec.IPs) > 0 && !identity.OptsOut(pod) {
			continue
		}
		list = append(list, nodepool.PodAddresses{Namespace: pod.Namespace, Name: pod.Name, Addrs: podutil.IPs(pod)})
	}
	return list, nil
}
