// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/explain"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/test/gen"
)

// TestAddress compares whole reports about one address.
func TestAddress(t *testing.T) {
	at := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	pools := func(subnet string, entries map[string]pool.Entry, users ...func(*pool.NodePool)) []pool.NodePool {
		return []pool.NodePool{gen.NodePool("node-1", subnet, entries, users...)}
	}
	web := gen.FixedIP("web-0", gen.Owner("web"), func(f *v1alpha1.FixedIP) {
		f.Spec.IPs, f.CreationTimestamp = []string{"10.0.1.6"}, metav1.Time{Time: at.Add(-time.Hour)}
		f.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonInUse}}
	})
	second := gen.FixedIP("web-1", gen.Owner("web"), func(f *v1alpha1.FixedIP) {
		f.Spec.IPs, f.CreationTimestamp = []string{"10.0.1.6"}, metav1.Time{Time: at.Add(-time.Minute)}
	})
	run := func(name string) corev1.Pod {
		return *gen.Pod(name, gen.On("node-1", "10.0.1.6"), gen.Running, func(p *corev1.Pod) {
			p.Status.StartTime = &metav1.Time{Time: at.Add(-3 * time.Minute)}
		})
	}
	mine := map[string]pool.Entry{"10.0.1.6": pool.OwnedEntry(gen.Namespace, "web-0", "StatefulSet", "web")}
	subnet := explain.Fact{What: "Subnet", Is: "10.0.1.0/24 of node node-1"}
	address := explain.Fact{What: "Address", Is: "10.0.1.6"}
	type row struct {
		in   explain.AddressInputs
		want explain.Report
	}
	entry := func(e pool.Entry, text string) row {
		return row{
			explain.AddressInputs{Pools: pools("10.0.1.0/24", map[string]pool.Entry{"10.0.1.6": e})},
			explain.Report{
				Facts:    []explain.Fact{address, {What: "Entry", Is: "node node-1: " + text}, subnet},
				Findings: []explain.Finding{{Text: "No pod has 10.0.1.6, and no FixedIP reserves it"}},
			},
		}
	}
	for name, c := range map[string]row{
		"a pod has its fixed address": {
			explain.AddressInputs{Pools: pools("10.0.1.0/24", mine, gen.UsedBy("db/web-0", "10.0.1.6")), Records: []v1alpha1.FixedIP{*web}, Pods: []corev1.Pod{run("web-0")}},
			explain.Report{Facts: []explain.Fact{
				address, {What: "Entry", Is: "node node-1: owned by db/web-0 (StatefulSet web)"}, subnet,
				{What: "FixedIP", Is: "db/web-0 for pod web-0, created 60m ago, InUse"}, {What: "Pod", Is: "db/web-0 on node node-1, started 3m ago"}, {What: "Agent", Is: "node node-1: used by db/web-0"},
			}},
		},
		"the agent names no owner": {
			explain.AddressInputs{Pools: pools("10.0.1.0/24", nil, gen.UsedBy("", "10.0.1.6"))},
			explain.Report{Facts: []explain.Fact{address, subnet, {What: "Agent", Is: "node node-1: used by an unknown owner"}}},
		},
		"two pods and two FixedIPs have it": {
			explain.AddressInputs{Pools: pools("10.0.1.0/24", mine), Records: []v1alpha1.FixedIP{*web, *second}, Pods: []corev1.Pod{run("web-0"), run("web-1")}},
			explain.Report{
				Facts: []explain.Fact{
					address, {What: "Entry", Is: "node node-1: owned by db/web-0 (StatefulSet web)"}, subnet,
					{What: "FixedIP", Is: "db/web-0 for pod web-0, created 60m ago, InUse"}, {What: "FixedIP", Is: "db/web-1 for pod web-1, created 60s ago"},
					{What: "Pod", Is: "db/web-0 on node node-1, started 3m ago"}, {What: "Pod", Is: "db/web-1 on node node-1, started 3m ago"},
				},
				Findings: []explain.Finding{{Wrong: true, Text: "2 pods run with 10.0.1.6: db/web-0, db/web-1", Help: "delete the pods for which no FixedIP reserves the address"}},
			},
		},
		"a CiliumEndpoint, and events that mention the address": {
			explain.AddressInputs{Pools: pools("10.0.1.0/24", mine), Records: []v1alpha1.FixedIP{*web}, Endpoints: map[string][]netip.Addr{"db/web-0": {netip.MustParseAddr("10.0.1.6")}, "db/web-1": {netip.MustParseAddr("10.0.1.60")}}, Events: []corev1.Event{
				{InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "db", Name: "web-0"}, Reason: "Adopted", Message: "Reserved the pod's current IPs: 10.0.1.6", LastTimestamp: metav1.Time{Time: at.Add(-time.Minute)}},
				{InvolvedObject: corev1.ObjectReference{Kind: "FixedIP", Namespace: "db", Name: "old-0"}, Reason: "Released", Message: "IPs 10.0.1.5, 10.0.1.6: released.", EventTime: metav1.MicroTime{Time: at.Add(-time.Hour)}},
				{InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "db", Name: "web-9"}, Message: "IP 10.0.1.60 is in use"},
			}},
			explain.Report{
				Facts: []explain.Fact{
					address, {What: "Entry", Is: "node node-1: owned by db/web-0 (StatefulSet web)"}, subnet,
					{What: "FixedIP", Is: "db/web-0 for pod web-0, created 60m ago, InUse"}, {What: "CiliumEndpoint", Is: "db/web-0"},
				},
				History: []explain.HistoryEvent{
					{At: at.Add(-time.Hour), Object: "FixedIP db/old-0", Reason: "Released", Message: "IPs 10.0.1.5, 10.0.1.6: released."},
					{At: at.Add(-time.Minute), Object: "Pod db/web-0", Reason: "Adopted", Message: "Reserved the pod's current IPs: 10.0.1.6"},
				},
			},
		},
		"two CiliumEndpoints have it": {
			explain.AddressInputs{Pools: pools("10.0.1.0/24", nil), Endpoints: map[string][]netip.Addr{"db/web-0": {netip.MustParseAddr("10.0.1.6")}, "db/web-1": {netip.MustParseAddr("10.0.1.6")}}},
			explain.Report{
				Facts:    []explain.Fact{address, subnet, {What: "CiliumEndpoint", Is: "db/web-0"}, {What: "CiliumEndpoint", Is: "db/web-1"}},
				Findings: []explain.Finding{{Wrong: true, Text: "2 CiliumEndpoints have 10.0.1.6: db/web-0, db/web-1", Help: "delete the CiliumEndpoints whose pods do not run with the address; their agents create them again"}},
			},
		},
		"with the rights of one namespace": {
			explain.AddressInputs{NotRead: []string{"CiliumNodes (forbidden)"}},
			explain.Report{
				Facts:    []explain.Fact{address, {What: "Not read", Is: "CiliumNodes (forbidden)"}},
				Findings: []explain.Finding{{Text: "No object that was read has 10.0.1.6"}},
			},
		},
		"dynamic and free": {
			explain.AddressInputs{Pools: pools("10.0.1.0/24", map[string]pool.Entry{"10.0.1.6": {}})},
			explain.Report{
				Facts:    []explain.Fact{address, {What: "Entry", Is: "node node-1: dynamic: for any pod of the node"}, subnet},
				Findings: []explain.Finding{{Text: "No pod has 10.0.1.6; the agent may give it to any pod of its node"}},
			},
		},
		"in cooldown": {
			explain.AddressInputs{Pools: pools("10.0.1.0/24", map[string]pool.Entry{"10.0.1.6": pool.CooldownEntry("db/old-0", at.Add(-20*time.Second))})},
			explain.Report{
				Facts:    []explain.Fact{address, {What: "Entry", Is: "node node-1: cooldown after the release from pod db/old-0, begun 20s ago"}, subnet},
				Findings: []explain.Finding{{Text: "No pod has 10.0.1.6, and no FixedIP reserves it"}},
			},
		},
		"moved":       entry(pool.MovedEntry("node-2", "db/web-0"), "moved: the pool of node node-2 carries the address of pod db/web-0, or is about to"),
		"leaving":     entry(pool.LeavingEntry("node-2", "db/web-0"), "moved: the pool of node node-2 carries the address of pod db/web-0, which is about to leave that pool"),
		"move-target": entry(pool.MoveTargetEntry("db/web-0"), "move-target: the address of pod db/web-0 is about to arrive from another node"),
		"foreign":     entry(pool.ForOwner("my-program"), `foreign: owner "my-program", written by a person or another program; fixedip never changes it`),
		"node-owned":  entry(pool.ForOwner("router"), "node-owned: router"),
		"withdrawn":   entry(pool.WithdrawnEntry(at.Add(-20*time.Second)), "withdrawal of a surplus address without a cooldown, begun 20s ago"),
		"in no subnet": {
			explain.AddressInputs{Pools: pools("10.0.2.0/24", nil)},
			explain.Report{
				Facts:    []explain.Fact{address, {What: "Subnet", Is: "none"}},
				Findings: []explain.Finding{{Text: "No pod has 10.0.1.6, and no FixedIP reserves it"}},
			},
		},
	} {
		c.in.Addr, c.in.Now = netip.MustParseAddr("10.0.1.6"), at
		if diff := cmp.Diff(c.want, explain.Address(c.in)); diff != "" {
			t.Errorf("%s: report (-want +got):\n%s", name, diff)
		}
	}
}
