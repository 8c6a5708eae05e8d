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
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
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
	// defaultPodCapacity is the pod capacity of a node that does not report one: the default of the kubelet.
	defaultPodCapacity = 110
	// restoreWithin is the time after the release of an address for which its cooldown does not end while a pod with
	// the name of the previous owner waits for an IP. The controller "adopt" restores the entry in its next resync at
	// the latest; two periods contain a complete resync.
	restoreWithin = 2 * source.ResyncPeriod
)

// Strict returns the names of the strict nodes that the cache shows. If the Nodes cannot be listed, it logs the error and
// returns none.
func (r *Reconciler) Strict(ctx context.Context) sets.Set[string] {
	var nodes corev1.NodeList
	if err := r.Cached.List(ctx, &nodes, client.MatchingLabelsSelector{Selector: r.StrictNodes}, client.UnsafeDisableDeepCopy); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to list the strict nodes; the metrics count them as other nodes in this scrape")
	}
	strict := sets.New[string]()
	for i := range nodes.Items {
		strict.Insert(nodes.Items[i].Name)
	}
	return strict
}

// gather returns the State from which the pool of a node is decided. It uses the ledger and the caches. It sends a request to
// the API server only for a Node that is missing in the cache.
func (r *Reconciler) gather(ctx context.Context, n pool.NodePool) (*nodepool.State, error) {
	s := &nodepool.State{
		Now: r.Clock.Now(), Watermark: r.Watermark, Cooldown: r.Cooldown, Capacity: defaultPodCapacity, RestoreWithin: restoreWithin,
		Held: r.heldOn(ctx, n.Name), Reserved: func(a netip.Addr) bool {
			_, reserved := r.Ledger.ReservedFor(a)
			return reserved
		},
		OnOtherNode: func(a netip.Addr) bool { return n.Home(a) && r.Ledger.HasEntryOnOtherNode(a, n.Name) },
		Gone:        map[string]bool{},
	}
	for _, e := range nodepool.StaleUnreserved(n, func(namespace, name string) bool {
		needed, err := r.needsEntry(ctx, r.Cached, n.Name, namespace, name)
		return err != nil || needed
	}) {
		s.Gone[e.Owner()] = true
	}
	// Read a Node that is not in the cache from the API server. Otherwise the pool of a strict node could be filled, and would
	// have to be emptied again.
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
	pods, err := index.PodsOnNode(ctx, r.Cached, n.Name)
	if err != nil {
		return nil, err
	}
	if s.Strict {
		s.Pods, err = r.podAddresses(ctx, n, pods)
	}
	s.Waiting = waiting(pods)
	for i := range pods {
		if podutil.HoldsIPs(&pods[i]) {
			s.PodIPs = append(s.PodIPs, podutil.IPs(&pods[i])...)
		}
	}
	return s, err
}

// waiting returns the owner keys of the pods that use the pod network, have not ended and have not reported an IP. A pod
// that is being deleted counts: the agent may have given it an IP.
func waiting(pods []corev1.Pod) (owners []string) {
	for i := range pods {
		if podutil.HoldsIPs(&pods[i]) && !podutil.HasIPs(&pods[i]) {
			owners = append(owners, pool.OwnerKey(pods[i].Namespace, pods[i].Name))
		}
	}
	return owners
}

// setReadiness sets NoNode, NotReady, ReadySince and Acknowledged in s. If node is nil, the node runs no pods: every cooldown
// counts as acknowledged, and no agent is asked.
func (r *Reconciler) setReadiness(s *nodepool.State, node *corev1.Node) {
	s.NoNode, s.NotReady, s.ReadySince = node == nil, false, time.Time{}
	s.Acknowledged = func(pool.NodePool, netip.Addr) bool { return true }
	if node != nil {
		since, ready := nodeutil.ReadySince(node)
		s.NotReady, s.ReadySince, s.Acknowledged = !ready, since, r.acknowledged
	}
}

// acknowledged reports whether the agent of a node has acknowledged the cooldown entry of an address and does not report the
// address as used. If there is no answer of the agent yet, it makes a barrier request; the answer enqueues the node.
func (r *Reconciler) acknowledged(n pool.NodePool, a netip.Addr) bool {
	cooldown := n.Entries[a]
	key := fmt.Sprint("cooldown of ", a, " in CiliumNode ", n.UID, cooldown)
	if cooldown.IsWithdrawn() {
		key += fmt.Sprint(" after withdrawal ", r.withdrawal(n, a))
	}
	evidence, answered := r.Agents.Ask(n.Name, key, func() { r.Requests.Add(source.ForName(n.Name)) })
	if answered.IsZero() {
		return false
	}
	if _, used := evidence.Used[a]; !used && evidence.Entries[a] == cooldown {
		return true
	}
	// This answer will never be sufficient. Drop it, so that the next call makes a new request.
	r.Agents.Forget(n.Name, key)
	return false
}

// readLive updates the readiness of the node, the pods and Gone in s from the API server. PodIPs stays as the cache shows it.
// An address counts as held if a pod has it in the cache or at the API server.
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
		live, err := r.podAddresses(ctx, n, pods)
		if err != nil {
			return err
		}
		// Add the pods without an IP that only the cache shows: LivePodsOnNode does not return pods that a DaemonSet created
		// for the node and that are not bound yet.
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

// heldOn returns a function that reports whether the cache shows a pod on the node that has an address. The status of a
// pod shows its address earlier than the report of the agent. If the cache can't be read, the address counts as held.
func (r *Reconciler) heldOn(ctx context.Context, node string) func(netip.Addr) bool {
	return func(a netip.Addr) bool {
		pods, err := index.PodsWithIP(ctx, r.Cached, a)
		return err != nil || slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return p.Spec.NodeName == node })
	}
}

// needsEntry reports whether a pod needs the entry that it got on a node as an unreserved pod. A pod that does not exist, has
// ended or is bound to another node does not need it. A pod that is bound to the node, or that a DaemonSet created for the
// node, needs it. Any other pod needs it unless the pod is known to have an identity. A pod with an identity gets an owned
// entry of the identity, which the entry of an unreserved pod would block.
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

// podAddresses returns those of the pods that are of the pod network and neither terminal nor being deleted, with their IPs.
// It leaves out a pod if a FixedIP with its name has IPs, because the controller fixedip adds the entries of that pod; and the
// holder of a slot, whose FixedIP has another name, if the slot has an IP in the subnets of n. It does not leave out a pod
// that opted out, because that pod does not get the addresses that the FixedIP retains.
func (r *Reconciler) podAddresses(ctx context.Context, n pool.NodePool, pods []corev1.Pod) ([]nodepool.PodAddresses, error) {
	reserved := sets.New[string]()
	for _, k := range r.Ledger.ReservationsIn(n.Subnets...) {
		reserved.Insert(k.Owner)
	}
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
		fixed := record != nil && len(record.Spec.IPs) > 0 || reserved.Has(pool.OwnerKey(pod.Namespace, pod.Name))
		if fixed && !identity.OptsOut(pod) {
			continue
		}
		list = append(list, nodepool.PodAddresses{Namespace: pod.Namespace, Name: pod.Name, Addrs: podutil.IPs(pod)})
	}
	return list, nil
}
