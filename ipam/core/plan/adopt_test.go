// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/plan"
	"fixedip.io/fixedip/ipam/core/pool"
)

func addrs(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range texts {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func TestAdoptable(t *testing.T) {
	for name, c := range map[string]struct {
		change   func(*corev1.Pod)
		ipv4Only bool
		want     []netip.Addr
	}{
		"running":             {want: addrs("10.0.1.7", "fd00::7")},
		"IPv4 alone":          {ipv4Only: true, want: addrs("10.0.1.7")},
		"not bound":           {change: func(p *corev1.Pod) { p.Spec.NodeName = "" }},
		"without an address":  {change: func(p *corev1.Pod) { p.Status.PodIPs = nil }},
		"on the host":         {change: func(p *corev1.Pod) { p.Spec.HostNetwork = true }},
		"on its way out":      {change: func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }},
		"ended":               {change: func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }},
		"ended with an error": {change: func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }},
	} {
		p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "node-1"}, Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.0.1.7"}, {IP: "fd00::7"}},
		}}
		if c.change != nil {
			c.change(p)
		}
		if diff := cmp.Diff(c.want, plan.Adoptable(p, c.ipv4Only), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("%s (-want +got): %s", name, diff)
		}
	}
}

func TestAdopt(t *testing.T) {
	id := identity.Identity{Namespace: "db", PodName: "mysql-0", Owner: identity.Owner{Kind: "StatefulSet", Name: "mysql"}}
	own, ordinary, taken := id.Entry(), pool.UnreservedEntry("db", "mysql-0"), pool.CooldownEntry("db/mysql-0", time.Unix(1, 0))
	adoptedAt, adopted := time.Unix(100, 0), own
	adopted.Since = 100
	for name, c := range map[string]struct {
		entries map[string]pool.Entry
		used    map[string]string
		want    []pool.Edit
		wantErr string
	}{
		"a dynamic entry":        {entries: map[string]pool.Entry{"10.0.1.7": {}}, used: map[string]string{"10.0.1.7": "db/mysql-0"}, want: []pool.Edit{{Addr: addrs("10.0.1.7")[0], From: &pool.Entry{}, To: &adopted}}},
		"the agent is late":      {entries: map[string]pool.Entry{"10.0.1.7": {}}, want: []pool.Edit{{Addr: addrs("10.0.1.7")[0], From: &pool.Entry{}, To: &adopted}}},
		"its own already":        {entries: map[string]pool.Entry{"10.0.1.7": own}},
		"its own for now":        {entries: map[string]pool.Entry{"10.0.1.7": ordinary}, want: []pool.Edit{{Addr: addrs("10.0.1.7")[0], From: &ordinary, To: &own}}},
		"taken out of the pool":  {want: []pool.Edit{{Addr: addrs("10.0.1.7")[0], To: &adopted}}},
		"of another pod":         {entries: map[string]pool.Entry{"10.0.1.7": pool.ForOwner("db/mysql-1")}, wantErr: "IP 10.0.1.7 on node node-1 belongs to pod db/mysql-1"},
		"resting":                {entries: map[string]pool.Entry{"10.0.1.7": pool.CooldownEntry("", time.Unix(1, 0))}, wantErr: "IP 10.0.1.7 on node node-1 is cooling down after its release at 1970-01-01T00:00:01Z"},
		"resting, from itself":   {entries: map[string]pool.Entry{"10.0.1.7": taken}, want: []pool.Edit{{Addr: addrs("10.0.1.7")[0], From: &taken, To: &adopted}}},
		"resting, from another":  {entries: map[string]pool.Entry{"10.0.1.7": pool.CooldownEntry("db/mysql-1", time.Unix(1, 0))}, wantErr: "IP 10.0.1.7 on node node-1 is cooling down after its release at 1970-01-01T00:00:01Z"},
		"another pod uses it":    {entries: map[string]pool.Entry{"10.0.1.7": {}}, used: map[string]string{"10.0.1.7": "web/web-0"}, wantErr: "IP 10.0.1.7 on node node-1 is still in use by a pod of another namespace"},
		"the agent does not say": {entries: map[string]pool.Entry{"10.0.1.7": {}}, used: map[string]string{"10.0.1.7": ""}, want: []pool.Edit{{Addr: addrs("10.0.1.7")[0], From: &pool.Entry{}, To: &adopted}}},
		"outside of its subnets": {entries: map[string]pool.Entry{"10.0.1.7": {}}, wantErr: "IP 10.0.1.7 is not in the subnets of node node-1 (10.0.2.0/24)"},
	} {
		n := pool.Node{Name: "node-1", PodCIDRs: []string{"10.0.1.0/24"}, Entries: map[netip.Addr]pool.Entry{}, Used: map[netip.Addr]string{}}
		if name == "outside of its subnets" {
			n.PodCIDRs = []string{"10.0.2.0/24"}
		}
		n.Subnets = []netip.Prefix{netip.MustParsePrefix(n.PodCIDRs[0])}
		for a, e := range c.entries {
			n.Entries[netip.MustParseAddr(a)] = e
		}
		for a, user := range c.used {
			n.Used[netip.MustParseAddr(a)] = user
		}
		got, err := plan.Adopt(n, id, addrs("10.0.1.7"), adoptedAt)
		message := ""
		if err != nil {
			message = err.Error()
		}
		if diff := cmp.Diff(c.want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" || message != c.wantErr {
			t.Errorf("%s: error %q, (-want +got): %s", name, message, diff)
		}
	}
}

func TestStrayed(t *testing.T) {
	for name, c := range map[string]struct {
		held []ledger.Holding
		kept []string
		has  []netip.Addr
		node string
		want []netip.Addr
	}{
		"nothing kept":              {has: addrs("10.0.1.7")},
		"kept as it runs":           {held: []ledger.Holding{{Node: "node-1", Addrs: addrs("10.0.1.7")}}, kept: []string{"10.0.1.7"}, has: addrs("10.0.1.7")},
		"kept elsewhere":            {held: []ledger.Holding{{Node: "node-2", Addrs: addrs("10.0.2.7")}}, kept: []string{"10.0.2.7"}, has: addrs("10.0.1.7"), node: "node-2", want: addrs("10.0.2.7")},
		"recorded, in no pool":      {kept: []string{"10.0.2.7"}, has: addrs("10.0.1.7"), want: addrs("10.0.2.7")},
		"the other family is fixed": {held: []ledger.Holding{{Node: "node-1", Addrs: addrs("10.0.1.7")}}, has: addrs("10.0.1.7", "fd00::7")},
	} {
		var kept []plan.Kept
		for _, ip := range c.kept {
			kept = append(kept, plan.Kept{Addr: netip.MustParseAddr(ip)})
		}
		node, got := plan.Strayed(c.held, kept, c.has)
		if diff := cmp.Diff(c.want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" || node != c.node {
			t.Errorf("%s: on %q, (-want +got): %s", name, node, diff)
		}
	}
}
