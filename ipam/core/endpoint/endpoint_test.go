// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package endpoint_test

import (
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/core/endpoint"
	"fixedip.io/fixedip/ipam/core/pool"
)

var now = time.Unix(1000, 0)

func podOn(node string, ips ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "mysql-0", UID: "pod-1"}, Spec: corev1.PodSpec{NodeName: node}}
	for _, ip := range ips {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	return p
}

func TestDiagnose(t *testing.T) {
	pod := func(change ...func(*corev1.Pod)) *corev1.Pod {
		p := podOn("node-1", "10.0.1.6")
		p.Status.HostIP = "192.0.2.1"
		for _, c := range change {
			c(p)
		}
		return p
	}
	cep := func(owner string, change ...func(*endpoint.Endpoint)) *endpoint.Endpoint {
		e := &endpoint.Endpoint{UID: "cep-1", NodeIP: "192.0.2.1"}
		e.OwnerUID = pod().UID
		if owner != "" {
			e.OwnerUID = "former"
		}
		e.Addrs = append(e.Addrs, netip.MustParseAddr("10.0.1.6"))
		for _, c := range change {
			c(e)
		}
		return e
	}
	stopping := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }
	waiting := func(p *corev1.Pod) { p.Status.PodIPs = nil }
	other := func(e *endpoint.Endpoint) { e.Addrs[0] = netip.MustParseAddr("10.0.1.2") }
	for name, c := range map[string]struct {
		endpoint *endpoint.Endpoint
		pod      *corev1.Pod
		want     endpoint.Issue
		// after is how long it is given, from when it was seen.
		after time.Duration
	}{
		"neither is there":                    {},
		"as it should be":                     {endpoint: cep(""), pod: pod()},
		"in two families":                     {endpoint: cep("", func(e *endpoint.Endpoint) { e.Addrs = append(e.Addrs, netip.MustParseAddr("fd00::6")) }), pod: pod(func(p *corev1.Pod) { p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: "fd00::6"}) })},
		"without owner reference":             {endpoint: cep("", func(e *endpoint.Endpoint) { e.OwnerUID = "" }), pod: pod()},
		"missing":                             {pod: pod(), want: endpoint.Missing, after: time.Minute},
		"not yet made":                        {pod: pod(waiting)},
		"none on the host's network":          {pod: pod(func(p *corev1.Pod) { p.Spec.HostNetwork = true })},
		"the pod stops":                       {endpoint: cep(""), pod: pod(stopping)},
		"the pod is gone":                     {endpoint: cep("former"), want: endpoint.Podless, after: time.Minute},
		"stuck, the pod is gone":              {endpoint: cep("former", func(e *endpoint.Endpoint) { e.Deleting = now }), want: endpoint.Stuck, after: time.Hour},
		"stuck, the pod runs":                 {endpoint: cep("", func(e *endpoint.Endpoint) { e.Deleting = now }), pod: pod(), want: endpoint.Stuck, after: time.Hour},
		"of the former pod, the next waits":   {endpoint: cep("former"), pod: pod(waiting), want: endpoint.Stale, after: time.Minute},
		"of the former pod, other address":    {endpoint: cep("former", other), pod: pod(), want: endpoint.Stale, after: time.Minute},
		"of the former pod, on another node":  {endpoint: cep("former", func(e *endpoint.Endpoint) { e.NodeIP = "192.0.2.2" }), pod: pod(), want: endpoint.Stale, after: time.Minute},
		"taken over with the former owner":    {endpoint: cep("former"), pod: pod(), want: endpoint.MisOwned},
		"the same where the node is unknown":  {endpoint: cep("former", func(e *endpoint.Endpoint) { e.NodeIP = "" }), pod: pod(), want: endpoint.MisOwned},
		"with the node's second address":      {endpoint: cep("former", func(e *endpoint.Endpoint) { e.NodeIP = "fd00::1" }), pod: pod(func(p *corev1.Pod) { p.Status.HostIPs = []corev1.HostIP{{IP: "192.0.2.1"}, {IP: "fd00::1"}} }), want: endpoint.MisOwned},
		"its own with another address":        {endpoint: cep("", other), pod: pod(), want: endpoint.MisAddressed, after: time.Minute},
		"its own without addresses":           {endpoint: cep("", func(e *endpoint.Endpoint) { e.Addrs = nil }), pod: pod(), want: endpoint.MisAddressed, after: time.Minute},
		"of something that is no pod":         {endpoint: cep("", other, func(e *endpoint.Endpoint) { e.Foreign = true }), pod: pod()},
		"of something that is no pod, orphan": {endpoint: cep("", func(e *endpoint.Endpoint) { e.Foreign = true })},
	} {
		got := endpoint.Diagnose(c.endpoint, c.pod)
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if got == endpoint.Healthy {
			continue
		}
		p := endpoint.GracePeriods{Termination: time.Hour, Agent: time.Minute}
		if due := p.Due(got, c.endpoint, now); !due.Equal(now.Add(c.after)) {
			t.Errorf("%s: due after %v, want %v", name, due.Sub(now), c.after)
		}
	}
}

// Finding C3. A pod is evicted for a missing CiliumEndpoint only if its node is ready and its agent runs and reports it.
func TestEvictionBlocker(t *testing.T) {
	ready := func(status corev1.ConditionStatus, taints ...corev1.Taint) *corev1.Node {
		return &corev1.Node{Spec: corev1.NodeSpec{Taints: taints}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}}}
	}
	reports := &pool.NodePool{Used: map[netip.Addr]string{netip.MustParseAddr("10.0.1.6"): "db/mysql-0"}}
	agent := func(status corev1.ConditionStatus) []corev1.Pod {
		return []corev1.Pod{{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}}}}
	}
	unavailable := ready(corev1.ConditionTrue)
	unavailable.Status.Conditions = append(unavailable.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue})
	for name, c := range map[string]struct {
		evidence endpoint.Evidence
		want     string
	}{
		"all is well":                   {evidence: endpoint.Evidence{Node: ready(corev1.ConditionTrue), Pool: reports, Agents: agent(corev1.ConditionTrue)}},
		"agents do not run as pods":     {evidence: endpoint.Evidence{Node: ready(corev1.ConditionTrue), Pool: reports}},
		"no node":                       {evidence: endpoint.Evidence{Pool: reports}, want: "node node-1 or its CiliumNode does not exist"},
		"no CiliumNode":                 {evidence: endpoint.Evidence{Node: ready(corev1.ConditionTrue)}, want: "node node-1 or its CiliumNode does not exist"},
		"the node does not report":      {evidence: endpoint.Evidence{Node: ready(corev1.ConditionUnknown), Pool: reports}, want: "node node-1 is not ready"},
		"the operator misses its agent": {evidence: endpoint.Evidence{Node: ready(corev1.ConditionTrue, corev1.Taint{Key: "node.cilium.io/agent-not-ready"}), Pool: reports}, want: "node node-1 has the taint node.cilium.io/agent-not-ready"},
		"no network":                    {evidence: endpoint.Evidence{Node: unavailable, Pool: reports}, want: "the network of node node-1 is unavailable"},
		"the agent does not run":        {evidence: endpoint.Evidence{Node: ready(corev1.ConditionTrue), Pool: reports, Agents: agent(corev1.ConditionFalse)}, want: "the Cilium agent of node node-1 is not ready"},
		"the agent does not report":     {evidence: endpoint.Evidence{Node: ready(corev1.ConditionTrue), Pool: &pool.NodePool{}}, want: "the agent of node node-1 does not report 10.0.1.6 as used"},
	} {
		c.evidence.Pod = podOn("node-1", "10.0.1.6")
		if got := c.evidence.EvictionBlocker(); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestTooManyMissing(t *testing.T) {
	for _, c := range []struct {
		missing, total int
		want           bool
	}{{0, 0, false}, {5, 5, false}, {6, 6, true}, {6, 599, true}, {6, 600, false}, {1000, 20_000, true}} {
		if got := endpoint.TooManyMissing(c.missing, func() int { return c.total }); got != c.want {
			t.Errorf("%d missing of %d: %v", c.missing, c.total, got)
		}
	}
}
