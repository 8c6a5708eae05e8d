// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ciliumendpoint

import (
	"context"
	"fmt"
	"slices"
	"strings"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/core/conformance"
	"fixedip.io/fixedip/ipam/core/nodeutil"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/store/ciliumconfigmap"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// agentTaint is the default key of the taint that Cilium's operator puts on a node whose agent does not run. A key that only
// begins with agentTaint counts as well. If agent-not-ready-taint-key in the ConfigMap of Cilium sets any other key,
// evictionBlocker does not recognize the taint.
const agentTaint = "node.cilium.io/agent-not-ready"

// agentPods selects the pods of the Cilium agent, by the label that the Helm chart of Cilium sets.
var agentPods = client.MatchingLabels{"k8s-app": "cilium"}

// reportMissing adds a pod without a CiliumEndpoint to MissingRequests, so that package conformance may evict the pod.
// It also records an event on the pod, because package conformance does not evict every such pod. For example, it
// evicts no pod without a FixedIP, and no pod whose FixedIP is being deleted. If Cilium creates no CiliumEndpoints,
// reportMissing reports nothing.
func (k *Keeper) reportMissing(ctx context.Context, key client.ObjectKey, pod *corev1.Pod) (ctrl.Result, error) {
	if enabled, err := Enabled(ctx, k.Live, k.CiliumConfig); err != nil || !enabled {
		return ctrl.Result{RequeueAfter: source.ResyncPeriod}, err
	}
	k.mu.Lock()
	is := k.seen[key]
	is.missing = is.Issue == Missing && is.pod == pod.UID
	if is.missing {
		k.seen[key] = is
		k.missing++
		metrics.EndpointsMissingNow.Inc()
	}
	k.mu.Unlock()
	if !is.missing {
		// The caches show another issue, or another pod with the same name. When the watch shows that this pod has no
		// CiliumEndpoint, the grace period begins.
		return ctrl.Result{}, nil
	}
	metrics.EndpointsMissing.Inc()
	k.MissingRequests.Add(ctrl.Request{NamespacedName: key})
	k.Events.Eventf(pod, nil, corev1.EventTypeWarning, conformance.ReasonNoCiliumEndpoint, "KeepEndpoints", "Pod has had no CiliumEndpoint for %s, so other nodes may not know its IPs; restart the Cilium agent on node %s (agents before v1.18.6 do not create a deleted CiliumEndpoint again), or delete the pod if the controller does not evict it", k.Grace.Agent, pod.Spec.NodeName)
	return ctrl.Result{RequeueAfter: source.ResyncPeriod}, nil
}

// Missing reports whether the CiliumEndpoint of a pod has been missing for longer than its grace period and that was
// reported.
func (k *Keeper) Missing(pod *corev1.Pod) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	is := k.seen[client.ObjectKeyFromObject(pod)]
	return is.missing && is.pod == pod.UID
}

// Confirm reports whether the API server shows that a pod has no CiliumEndpoint, and returns the reason why the pod must not
// be evicted for that. If missing is true and blocker is empty, the pod may be evicted: not too many CiliumEndpoints are
// missing, the node is ready, and the agent of the node runs, reports the IPs of the pod as used and creates
// CiliumEndpoints. missing is also false if the pod was replaced or no longer runs, and if Cilium creates no CiliumEndpoints.
func (k *Keeper) Confirm(ctx context.Context, pod *corev1.Pod) (missing bool, blocker string, err error) {
	found, _, now, err := readIssue(ctx, k.Live, client.ObjectKeyFromObject(pod))
	if err != nil || found != Missing || now.UID != pod.UID {
		return false, "", err
	}
	if enabled, err := Enabled(ctx, k.Live, k.CiliumConfig); err != nil || !enabled {
		return false, "", err
	}
	if k.pause(ctx, pod) {
		return true, "too many pods have no CiliumEndpoint", nil
	}
	name := now.Spec.NodeName
	node, err := index.Node(ctx, k.Live, name)
	if err != nil {
		return false, "", err
	}
	cn, err := index.Get[ciliumv2.CiliumNode](ctx, k.Live, client.ObjectKey{Name: name})
	if err != nil {
		return false, "", err
	}
	agents, err := index.LivePodsOnNode(ctx, k.Live, name, agentPods)
	if err != nil {
		return false, "", err
	}
	if blocker = evictionBlocker(now, node, cn, agents); blocker != "" {
		return true, blocker, nil
	}
	for _, ip := range nodeIPs(now, cn) {
		var others ciliumv2.CiliumEndpointList
		if err := k.Cached.List(ctx, &others, client.MatchingFields{nodeIndex: ip}, client.Limit(1), client.UnsafeDisableDeepCopy); err != nil {
			return false, "", fmt.Errorf("list the CiliumEndpoints of node %s from the cache: %w", name, err)
		}
		if len(others.Items) > 0 {
			return true, "", nil
		}
	}
	// No pod on the node has a CiliumEndpoint.
	return true, fmt.Sprintf("no CiliumEndpoint names an IP of node %s in status.networking.node; its Cilium agent may have just started, or may be configured to create no CiliumEndpoints; check the cilium pod of the node", name), nil
}

// nodeIPs returns the IPs that a CiliumEndpoint may name as the IP of the pod's node: the IP that the kubelet reports, and
// the IPs in the CiliumNode, which may differ from it.
func nodeIPs(pod *corev1.Pod, cn *ciliumv2.CiliumNode) []string {
	ips := []string{pod.Status.HostIP}
	for _, a := range cn.Spec.Addresses {
		ips = append(ips, a.IP)
	}
	return ips
}

// pause reports whether too many CiliumEndpoints are missing for an eviction (tooManyMissing). When the result becomes true, it
// logs an error and records an event on the pod.
func (k *Keeper) pause(ctx context.Context, pod *corev1.Pod) bool {
	k.mu.Lock()
	missing, was := k.missing, k.paused
	k.mu.Unlock()
	paused, gauge := false, 0.0
	if missing > fewMissing {
		var all ciliumv2.CiliumEndpointList
		if err := k.Cached.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to count the CiliumEndpoints in the cache; evictions of pods without a CiliumEndpoint are paused")
		}
		paused = tooManyMissing(missing, len(all.Items))
	}
	if paused {
		gauge = 1
	}
	// The metric is set under mu, as in remember, so that it agrees with k.paused.
	k.mu.Lock()
	k.paused = paused
	metrics.EndpointEvictionsPaused.Set(gauge)
	k.mu.Unlock()
	if paused && !was {
		klog.FromContext(ctx).Error(nil, "Too many CiliumEndpoints are missing; evictions of pods without a CiliumEndpoint are paused until fewer are missing", "pods", missing)
		k.Events.Eventf(pod, nil, corev1.EventTypeWarning, "EvictionsPaused", "KeepEndpoints", "%d pods have no CiliumEndpoint; evictions of such pods are paused until there are fewer; check the Cilium agents, and clients that delete CiliumEndpoints", missing)
	}
	return paused
}

const (
	// fewMissing is the number of CiliumEndpoints that may be missing without a pause of evictions, and 1/perMissing the share
	// of all CiliumEndpoints that may be missing: see tooManyMissing.
	fewMissing = 5
	perMissing = 100
)

// tooManyMissing reports whether so many CiliumEndpoints are missing, while total exist, that the cause cannot be in the pods.
// To restart all pods without a CiliumEndpoint would then be an outage.
func tooManyMissing(missing, total int) bool {
	return missing > fewMissing && missing > total/perMissing
}

// evictionBlocker returns the reason why a pod must not be evicted for its missing CiliumEndpoint, or an empty string if the pod
// may be evicted. A restart helps only if the agent works: otherwise the next pod has no network at all. All arguments were
// read from the API server. node and cn are nil if they do not exist. agents contains the pods of the Cilium agent on the
// node; it is empty if the agent does not run as a labeled pod.
func evictionBlocker(pod *corev1.Pod, node *corev1.Node, cn *ciliumv2.CiliumNode, agents []corev1.Pod) string {
	name := pod.Spec.NodeName
	switch {
	case node == nil || cn == nil:
		return fmt.Sprintf("node %s or its CiliumNode does not exist", name)
	case !nodeutil.IsReady(node):
		return fmt.Sprintf("node %s is not ready", name)
	}
	for _, t := range node.Spec.Taints {
		if strings.HasPrefix(t.Key, agentTaint) {
			return fmt.Sprintf("node %s has the taint %s", name, t.Key)
		}
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionTrue {
			return fmt.Sprintf("the network of node %s is unavailable", name)
		}
	}
	if slices.ContainsFunc(agents, func(agent corev1.Pod) bool { return !podutil.IsReady(&agent) }) {
		return fmt.Sprintf("the Cilium agent of node %s is not ready", name)
	}
	used := ciliumpool.FromCiliumNode(cn).Used
	for _, a := range podutil.IPs(pod) {
		if _, reported := used[a]; !reported {
			return fmt.Sprintf("the Cilium agent of node %s does not report IP %s as used", name, a)
		}
	}
	return ""
}

// Enabled reports whether Cilium creates CiliumEndpoints: the CRD exists, and the ConfigMap of Cilium does not disable them.
// A ConfigMap that does not exist, that the controller may not read, or that has an invalid value disables nothing.
func Enabled(ctx context.Context, live client.Client, cilium types.NamespacedName) (bool, error) {
	gvk := ciliumv2.SchemeGroupVersion.WithKind(ciliumv2.CEPKindDefinition)
	if _, err := live.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version); meta.IsNoMatchError(err) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("look up the API of CiliumEndpoints: %w", err)
	}
	s, _, err := ciliumconfigmap.Get(ctx, ciliumconfigmap.FromClient(live), cilium)
	return err == nil && !s.EndpointsDisabled, err
}
