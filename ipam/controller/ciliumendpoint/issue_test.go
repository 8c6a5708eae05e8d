// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ciliumendpoint

import (
	"testing"
	"time"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/test/gen"
)

var now = time.Unix(1000, 0)

func podOn(node string, ips ...string) *corev1.Pod { return gen.Pod("mysql-0", gen.On(node, ips...)) }

// TestDiagnose checks the issue for combinations of a CiliumEndpoint and a pod, and the time at which the keeper acts
// on it. The model found two faults. The keeper deleted a CiliumEndpoint that the agent had taken over before the
// kubelet reported the IP of the pod. The keeper also kept a CiliumEndpoint that a user had restored after the address
// had moved to another node.
func TestDiagnose(t *testing.T) {
	pod := func(change ...func(*corev1.Pod)) *corev1.Pod {
		p := podOn("node-1", "10.0.1.6")
		p.Status.HostIP = "192.0.2.1"
		for _, c := range change {
			c(p)
		}
		return p
	}
	ips := func(ips ...string) ciliumv2.AddressPairList {
		var list ciliumv2.AddressPairList
		for _, ip := range ips {
			list = append(list, &ciliumv2.AddressPair{IPV4: ip})
		}
		return list
	}
	type change = func(*ciliumv2.CiliumEndpoint)
	cep := func(owner string, changes ...change) *ciliumv2.CiliumEndpoint {
		e := &ciliumv2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Name: "mysql-0", UID: "cep-1"}}
		e.Status.Networking = &ciliumv2.EndpointNetworking{NodeIP: "192.0.2.1", Addressing: ips("10.0.1.6")}
		e.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: "mysql-0", UID: pod().UID}}
		if owner != "" {
			e.OwnerReferences[0].UID = "former"
		}
		for _, c := range changes {
			c(e)
		}
		return e
	}
	has := func(all ...string) change {
		return func(e *ciliumv2.CiliumEndpoint) { e.Status.Networking.Addressing = ips(all...) }
	}
	on := func(ip string) change {
		return func(e *ciliumv2.CiliumEndpoint) { e.Status.Networking.NodeIP = ip }
	}
	foreign := func(e *ciliumv2.CiliumEndpoint) { e.OwnerReferences[0].Kind = "Other" }
	deleting := func(e *ciliumv2.CiliumEndpoint) { e.DeletionTimestamp = &metav1.Time{Time: now} }
	stopping := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }
	waiting := func(p *corev1.Pod) { p.Status.PodIPs = nil }
	unbound := func(p *corev1.Pod) { p.Spec.NodeName, p.Status = "", corev1.PodStatus{} }
	other := has("10.0.1.2")
	for name, c := range map[string]struct {
		endpoint *ciliumv2.CiliumEndpoint
		pod      *corev1.Pod
		want     Issue
		// after is the expected time from now until the issue is due. The issue is first seen now, and the deletionTimestamp of
		// a CiliumEndpoint that is being deleted is now too.
		after time.Duration
	}{
		"no CiliumEndpoint, no pod":                                {},
		"CiliumEndpoint of the pod":                                {endpoint: cep(""), pod: pod()},
		"CiliumEndpoint with both families":                        {endpoint: cep("", has("10.0.1.6", "fd00::6")), pod: pod(func(p *corev1.Pod) { p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: "fd00::6"}) })},
		"no owner reference":                                       {endpoint: cep("", func(e *ciliumv2.CiliumEndpoint) { e.OwnerReferences = nil }), pod: pod()},
		"no owner reference, IP of another node":                   {endpoint: cep("", on("192.0.2.2"), func(e *ciliumv2.CiliumEndpoint) { e.OwnerReferences = nil }), pod: pod(), want: MisAddressed, after: time.Minute},
		"owner is the pod, another IP of its node":                 {endpoint: cep("", on("192.0.2.2")), pod: pod()},
		"running pod without CiliumEndpoint":                       {pod: pod(), want: Missing, after: time.Minute},
		"pod without IP and CiliumEndpoint":                        {pod: pod(waiting)},
		"host network pod without CiliumEndpoint":                  {pod: pod(func(p *corev1.Pod) { p.Spec.HostNetwork = true })},
		"pod is being deleted":                                     {endpoint: cep(""), pod: pod(stopping)},
		"no pod":                                                   {endpoint: cep("former"), want: Podless, after: time.Minute},
		"CiliumEndpoint is being deleted, no pod":                  {endpoint: cep("former", deleting), want: Stuck, after: time.Hour},
		"CiliumEndpoint is being deleted, pod runs":                {endpoint: cep("", deleting), pod: pod(), want: Stuck, after: time.Hour},
		"former owner, pod is not bound":                           {endpoint: cep("former"), pod: pod(unbound), want: Stale, after: time.Minute},
		"former owner, other node, pod without IP":                 {endpoint: cep("former", on("192.0.2.2")), pod: pod(waiting), want: Stale, after: time.Minute},
		"former owner, same node, pod without IP":                  {endpoint: cep("former"), pod: pod(waiting), want: MisOwned},
		"former owner, same node, pod without IP is being deleted": {endpoint: cep("former"), pod: pod(waiting, stopping), want: Stale, after: time.Minute},
		"former owner, other address, pod runs":                    {endpoint: cep("former", other), pod: pod(), want: Stale, after: time.Minute},
		"former owner, other node, pod runs":                       {endpoint: cep("former", on("192.0.2.2")), pod: pod(), want: Stale, after: time.Minute},
		"former owner, same node and address, pod runs":            {endpoint: cep("former"), pod: pod(), want: MisOwned},
		"former owner, no node IP, same address, pod runs":         {endpoint: cep("former", on("")), pod: pod(), want: MisOwned},
		"former owner, second IP of the node, pod runs":            {endpoint: cep("former", on("fd00::1")), pod: pod(func(p *corev1.Pod) { p.Status.HostIPs = []corev1.HostIP{{IP: "192.0.2.1"}, {IP: "fd00::1"}} }), want: MisOwned},
		"CiliumEndpoint of the pod with another address":           {endpoint: cep("", other), pod: pod(), want: MisAddressed, after: time.Minute},
		"CiliumEndpoint of the pod without addresses":              {endpoint: cep("", has()), pod: pod(), want: MisAddressed, after: time.Minute},
		"owner is no pod":                                          {endpoint: cep("", other, foreign), pod: pod()},
		"owner is no pod, no pod":                                  {endpoint: cep("", foreign)},
	} {
		got := Diagnose(c.endpoint, c.pod)
		if got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
		if got == Healthy {
			continue
		}
		p := GracePeriods{Termination: time.Hour, Agent: time.Minute}
		if due := p.Due(got, c.endpoint, now); !due.Equal(now.Add(c.after)) {
			t.Errorf("%s: got due after %v, want %v", name, due.Sub(now), c.after)
		}
	}
}

// TestEvictionBlocker checks that a pod may be evicted for a missing CiliumEndpoint only if its node is ready, and its
// agent runs and reports its IP as used (finding C3 in docs/project/findings.md).
func TestEvictionBlocker(t *testing.T) {
	ready := func(status corev1.ConditionStatus, taints ...corev1.Taint) *corev1.Node {
		return &corev1.Node{Spec: corev1.NodeSpec{Taints: taints}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}}}
	}
	reports := &ciliumv2.CiliumNode{}
	reports.Status.IPAM.Used = ipamtypes.AllocationMap{"10.0.1.6": {Owner: "db/mysql-0"}}
	agent := func(status corev1.ConditionStatus) []corev1.Pod {
		return []corev1.Pod{{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}}}}
	}
	unavailable := ready(corev1.ConditionTrue)
	unavailable.Status.Conditions = append(unavailable.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue})
	for name, c := range map[string]struct {
		node   *corev1.Node
		pool   *ciliumv2.CiliumNode
		agents []corev1.Pod
		want   string
	}{
		"node and agent are ready":           {node: ready(corev1.ConditionTrue), pool: reports, agents: agent(corev1.ConditionTrue)},
		"agents do not run as pods":          {node: ready(corev1.ConditionTrue), pool: reports},
		"no node":                            {pool: reports, want: "node node-1 or its CiliumNode does not exist"},
		"no CiliumNode":                      {node: ready(corev1.ConditionTrue), want: "node node-1 or its CiliumNode does not exist"},
		"node is not ready":                  {node: ready(corev1.ConditionUnknown), pool: reports, want: "node node-1 is not ready"},
		"node has the taint of the operator": {node: ready(corev1.ConditionTrue, corev1.Taint{Key: "node.cilium.io/agent-not-ready"}), pool: reports, want: "node node-1 has the taint node.cilium.io/agent-not-ready"},
		"network is unavailable":             {node: unavailable, pool: reports, want: "the network of node node-1 is unavailable"},
		"agent is not ready":                 {node: ready(corev1.ConditionTrue), pool: reports, agents: agent(corev1.ConditionFalse), want: "the Cilium agent of node node-1 is not ready"},
		"agent does not report the IP":       {node: ready(corev1.ConditionTrue), pool: &ciliumv2.CiliumNode{}, want: "the Cilium agent of node node-1 does not report IP 10.0.1.6 as used"},
	} {
		if got := evictionBlocker(podOn("node-1", "10.0.1.6"), c.node, c.pool, c.agents); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func TestTooManyMissing(t *testing.T) {
	for _, c := range []struct {
		missing, total int
		want           bool
	}{{0, 0, false}, {5, 5, false}, {6, 6, true}, {6, 599, true}, {6, 600, false}, {1000, 20_000, true}} {
		if got := tooManyMissing(c.missing, c.total); got != c.want {
			t.Errorf("%d missing, %d exist: got %v, want %v", c.missing, c.total, got, c.want)
		}
	}
}
