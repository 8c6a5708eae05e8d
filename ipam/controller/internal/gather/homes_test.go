// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package gather

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reclaim"
	"fixedip.io/fixedip/ipam/scheme"
)

// An address is not released while another pod has it, or its agent may have assigned it to another.
func TestBlockers(t *testing.T) {
	const owner, silence = "db/mysql-0", time.Minute
	kinds, err := scheme.New()
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	a := netip.MustParseAddr("10.0.1.6")
	since := func(age time.Duration) pool.Entry {
		return pool.Entry{Kind: pool.Owned, Purpose: pool.ForWorkload, Owner: owner, Workload: "db/StatefulSet/mysql", Since: now.Add(-age).Unix()}
	}
	node := func(ready corev1.ConditionStatus, age time.Duration) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: ready, LastTransitionTime: metav1.NewTime(now.Add(-age))},
		}}}
	}
	up := node(corev1.ConditionTrue, time.Hour)
	const until = "waiting for the Cilium agent on node n to acknowledge the owner of IP 10.0.1.6 (at most until "
	for name, c := range map[string]struct {
		entry pool.Entry
		// used is who has the address, as the agent said after it could know whose it is; reports: it said something then.
		used    string
		reports bool
		node    *corev1.Node
		want    string
	}{
		"it was claimed":                {entry: pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql"), node: up},
		"its pod has it":                {entry: since(time.Second), used: owner, reports: true, node: up},
		"another has it":                {entry: since(time.Hour), used: "db/other-0", node: up, want: "IP 10.0.1.6 is still in use by db/other-0 on node n, whose agent assigned it before it knew the owner; release is blocked until that pod is deleted"},
		"one of another namespace does": {entry: since(time.Hour), used: "web/other-0", node: up, want: "IP 10.0.1.6 is still in use by a pod of another namespace on node n, whose agent assigned it before it knew the owner; release is blocked until that pod is deleted"},
		"the agent may not know":        {entry: since(time.Second), node: up, want: until + "2026-11-24T12:01:59Z)"},
		"or have said":                  {entry: since(2*silence - time.Second), node: up, want: until + "2026-11-24T12:00:01Z)"},
		"it would have":                 {entry: since(2 * silence), node: up},
		"it has":                        {entry: since(time.Second), reports: true, node: up},
		"its node was away":             {entry: since(time.Hour), node: node(corev1.ConditionTrue, silence), want: until + "2026-11-24T12:01:00Z)"},
		"its node is away":              {entry: since(time.Hour), node: node(corev1.ConditionUnknown, time.Hour), want: "node n is not ready, and its agent may not know the owner of IP 10.0.1.6; release is blocked until the node is ready or deleted"},
		"its node is gone":              {entry: since(time.Second)},
	} {
		builder := fake.NewClientBuilder().WithScheme(kinds)
		if c.node != nil {
			builder = builder.WithObjects([]client.Object{c.node}...)
		}
		g := &Gatherer{Ledger: ledger.New(), Cached: builder.Build(), Clock: clocktesting.NewFakeClock(now), AgentSilence: silence}
		n := pool.Node{Name: "n", UID: "n", Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}, Entries: map[netip.Addr]pool.Entry{a: c.entry}, Used: map[netip.Addr]string{}}
		if c.used != "" && !c.reports {
			n.Used[a] = c.used
		}
		g.Ledger.SetNode(n)
		if c.reports {
			n.Used = map[netip.Addr]string{a.Next(): "db/other-1"}
			if c.used != "" {
				n.Used[a] = c.used
			}
			g.Ledger.SetNode(n)
		}
		var want []reclaim.ReleaseBlocker
		if c.want != "" {
			want = []reclaim.ReleaseBlocker{{Addr: a, User: c.used, Why: c.want}}
		}
		got, err := g.blockers(t.Context(), owner, g.Ledger.Held(owner))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmp.Comparer(func(x, y netip.Addr) bool { return x == y })); diff != "" {
			t.Errorf("%s: -want +got\n%s", name, diff)
		}
	}
}
