// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ciliumendpoint

import (
	"context"
	"fmt"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/core/conformance"
	"fixedip.io/fixedip/ipam/core/endpoint"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// agentPods selects the pods of the Cilium agent, by the label that every installation of Cilium sets.
var agentPods = client.MatchingLabels{"k8s-app": "cilium"}

// reportMissing reports a pod without a CiliumEndpoint: to package conformance, or in an event if it has no fixed IP.
func (k *Keeper) reportMissing(ctx context.Context, key types.NamespacedName, pod *corev1.Pod) (reconcile.Result, error) {
	// An agent that makes none for other pods either is set up so, or has just started.
	var others ciliumv2.CiliumEndpointList
	if err := k.Cached.List(ctx, &others, client.MatchingFields{nodeIndex: pod.Status.HostIP}, client.Limit(1), client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, fmt.Errorf("list the CiliumEndpoints of node %s: %w", pod.Spec.NodeName, err)
	}
	if enabled, err := Enabled(ctx, k.Live); err != nil || !enabled || len(others.Items) == 0 {
		return reconcile.Result{RequeueAfter: source.ResyncPeriod}, err
	}
	if !k.setMissing(key, pod.UID) {
		return reconcile.Result{}, nil
	}
	metrics.EndpointsMissing.Inc()
	if k.Fixed(ctx, key) {
		k.MissingFeed.Add(reconcile.Request{NamespacedName: key})
	} else {
		k.Events.Eventf(pod, nil, corev1.EventTypeWarning, conformance.ReasonNoCiliumEndpoint, "KeepEndpoints", "It has had no CiliumEndpoint for %s, so that other nodes do not know it; agents before v1.19 do not make it again by themselves: restart the pod, or the agent of node %s", k.Grace.Agent, pod.Spec.NodeName)
	}
	return reconcile.Result{RequeueAfter: source.ResyncPeriod}, nil
}

// setMissing records that the CiliumEndpoint of a pod is missing for too long. It returns false if the caches show
// another issue, or another pod of the name: the watch will show this one, and its grace period begins then.
func (k *Keeper) setMissing(key types.NamespacedName, pod types.UID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	is := k.seen[key]
	if is.Issue != endpoint.Missing || is.pod != pod {
		return false
	}
	is.missing = true
	k.seen[key] = is
	k.missing++
	metrics.EndpointsMissingNow.Set(float64(k.missing))
	return true
}

// Missing reports whether a pod has had no CiliumEndpoint for longer than its agent needs to make one.
func (k *Keeper) Missing(pod *corev1.Pod) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	is := k.seen[client.ObjectKeyFromObject(pod)]
	return is.missing && is.pod == pod.UID
}

// Confirm reads at the API server whether a pod has a CiliumEndpoint, and whether it may be evicted if not: its node is
// ready, and its agent runs and reports its IPs. If too many CiliumEndpoints are missing at once, none counts as missing:
// the cause is not in the pods, and a restart of all of them would be an outage.
func (k *Keeper) Confirm(ctx context.Context, pod *corev1.Pod) (missing bool, blocker string, err error) {
	key := client.ObjectKeyFromObject(pod)
	now, cep, err := read(ctx, k.Live, key)
	if err != nil || now == nil || now.UID != pod.UID || endpoint.Diagnose(decode(cep), now) != endpoint.Missing {
		return false, "", err
	}
	if enabled, err := Enabled(ctx, k.Live); err != nil || !enabled {
		return false, "", err
	}
	if k.pause(ctx, pod) {
		return false, "", nil
	}
	e := endpoint.Evidence{Pod: now}
	if e.Node, err = index.Node(ctx, k.Live, now.Spec.NodeName); err != nil {
		return false, "", err
	}
	node, err := index.Get[ciliumv2.CiliumNode](ctx, k.Live, client.ObjectKey{Name: now.Spec.NodeName})
	if err != nil {
		return false, "", err
	}
	if node != nil {
		pool := ciliumpool.FromCiliumNode(node)
		e.Pool = &pool
	}
	var agents corev1.PodList
	if err := k.Live.List(ctx, &agents, agentPods, client.MatchingFields{"spec.nodeName": now.Spec.NodeName}); err != nil {
		return false, "", fmt.Errorf("list the Cilium agents of node %s: %w", now.Spec.NodeName, err)
	}
	e.Agents = agents.Items
	return true, e.EvictionBlocker(), nil
}

// pause reports whether too many CiliumEndpoints are missing to evict any pod for it.
func (k *Keeper) pause(ctx context.Context, pod *corev1.Pod) bool {
	k.mu.Lock()
	missing := k.missing
	was := k.paused
	k.mu.Unlock()
	paused := endpoint.TooManyMissing(missing, func() int {
		var all ciliumv2.CiliumEndpointList
		if err := k.Cached.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
			klog.FromContext(ctx).Error(err, "CiliumEndpoints not counted")
			return 0
		}
		return len(all.Items)
	})
	k.mu.Lock()
	k.paused = paused
	k.mu.Unlock()
	gauge := 0.0
	if paused {
		gauge = 1
	}
	metrics.EndpointEvictionsPaused.Set(gauge)
	if paused && !was {
		klog.FromContext(ctx).Error(nil, "Too many pods have no CiliumEndpoint; none is evicted for that", "pods", missing)
		k.Events.Eventf(pod, nil, corev1.EventTypeWarning, "EvictionsPaused", "KeepEndpoints", "%d pods have no CiliumEndpoint at once, so that none of them is evicted for it: look at the Cilium agents, and at clients that delete CiliumEndpoints", missing)
	}
	return paused
}
