// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package conformance_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/core/conformance"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reservation"
)

func addrs(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range texts {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func TestAdoptableIPs(t *testing.T) {
	for name, c := range map[string]struct {
		change   func(*corev1.Pod)
		ipv4Only bool
		want     []netip.Addr
	}{
		"the pod runs":        {want: addrs("10.0.1.7", "fd00::7")},
		"only IPv4":           {ipv4Only: true, want: addrs("10.0.1.7")},
		"not bound":           {change: func(p *corev1.Pod) { p.Spec.NodeName = "" }},
		"without IPs":         {change: func(p *corev1.Pod) { p.Status.PodIPs = nil }},
		"on the host network": {change: func(p *corev1.Pod) { p.Spec.HostNetwork = true }},
		"terminating":         {change: func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }},
		"succeeded":           {change: func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }},
		"failed":              {change: func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }},
	} {
		p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "node-1"}, Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.0.1.7"}, {IP: "fd00::7"}},
		}}
		if c.change != nil {
			c.change(p)
		}
		if diff := cmp.Diff(c.want, conformance.AdoptableIPs(p, c.ipv4Only), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("%s: AdoptableIPs (-want +got): %s", name, diff)
		}
	}
}

func TestAdoptionBlocker(t *testing.T) {
	id := identity.Identity{Namespace: "db", PodName: "mysql-0", Owner: identity.Owner{Kind: "StatefulSet", Name: "mysql"}}
	const (
		dynamic  = pool.DynamicEntry
		used     = pool.InUseByPod
		reserved = pool.OwnedByPod
		cooldown = pool.CoolingDown
		outside  = pool.SubnetNotFound
	)
	released := pool.CooldownEntry("db/mysql-1", time.Unix(1, 0))
	for name, c := range map[string]struct {
		entries map[string]pool.Entry
		used    map[string]string
		// adopted is the expected reason if the argument dynamic is true, as for adoption; restored is the expected reason if
		// dynamic is false, as for a pod of our scheduler. Empty: the pod keeps the IP.
		adopted, restored pool.Reason
	}{
		"dynamic entry": {entries: map[string]pool.Entry{"10.0.1.7": {}}, used: map[string]string{"10.0.1.7": "db/mysql-0"}, restored: dynamic},
		"dynamic entry, the agent has not reported the IP yet":     {entries: map[string]pool.Entry{"10.0.1.7": {}}, restored: dynamic},
		"owned entry of the pod":                                   {entries: map[string]pool.Entry{"10.0.1.7": id.Entry()}},
		"Unreserved entry of the pod":                              {entries: map[string]pool.Entry{"10.0.1.7": pool.UnreservedEntry("db", "mysql-0")}},
		"no entry":                                                 {},
		"owned entry of another pod":                               {entries: map[string]pool.Entry{"10.0.1.7": pool.ForOwner("db/mysql-1")}, adopted: reserved, restored: reserved},
		"cooldown after a release from another pod":                {entries: map[string]pool.Entry{"10.0.1.7": released}, adopted: cooldown, restored: cooldown},
		"cooldown after a withdrawal":                              {entries: map[string]pool.Entry{"10.0.1.7": pool.CooldownEntry("", time.Unix(1, 0))}, restored: cooldown},
		"cooldown after a release from the pod":                    {entries: map[string]pool.Entry{"10.0.1.7": pool.CooldownEntry("db/mysql-0", time.Unix(1, 0))}},
		"dynamic entry, the agent reports the IP for another pod":  {entries: map[string]pool.Entry{"10.0.1.7": {}}, used: map[string]string{"10.0.1.7": "db/web-0"}, adopted: used, restored: used},
		"dynamic entry, the agent reports the IP without an owner": {entries: map[string]pool.Entry{"10.0.1.7": {}}, used: map[string]string{"10.0.1.7": ""}, restored: dynamic},
		"no subnet contains the IP":                                {adopted: outside, restored: outside},
	} {
		n := pool.NodePool{Name: "node-1", PodCIDRs: []string{"10.0.1.0/24"}, Entries: map[netip.Addr]pool.Entry{}, Used: map[netip.Addr]string{}}
		if name == "no subnet contains the IP" {
			n.PodCIDRs = []string{"10.0.2.0/24"}
		}
		n.Subnets = []netip.Prefix{netip.MustParsePrefix(n.PodCIDRs[0])}
		for a, e := range c.entries {
			n.Entries[addr(a)] = e
		}
		for a, user := range c.used {
			n.Used[addr(a)] = user
		}
		for dynamic, want := range map[bool]pool.Reason{true: c.adopted, false: c.restored} {
			var got pool.Reason
			if b := conformance.AdoptionBlocker(n, id, addrs("10.0.1.7"), dynamic); b != nil {
				got = b.Reason
			}
			if got != want {
				t.Errorf("%s, dynamic %v: AdoptionBlocker returns reason %q, want %q", name, dynamic, got, want)
			}
		}
	}
}

func TestMissingReserved(t *testing.T) {
	for name, c := range map[string]struct {
		held     []ledger.NodeAddresses
		reserved []string
		has      []netip.Addr
		node     string
		want     []netip.Addr
	}{
		"nothing is reserved":                            {has: addrs("10.0.1.7")},
		"the pod runs with the reserved IP":              {held: []ledger.NodeAddresses{{Node: "node-1", Addrs: addrs("10.0.1.7")}}, reserved: []string{"10.0.1.7"}, has: addrs("10.0.1.7")},
		"the reserved IP is in the pool of another node": {held: []ledger.NodeAddresses{{Node: "node-2", Addrs: addrs("10.0.2.7")}}, reserved: []string{"10.0.2.7"}, has: addrs("10.0.1.7"), node: "node-2", want: addrs("10.0.2.7")},
		"the reserved IP is in no pool":                  {reserved: []string{"10.0.2.7"}, has: addrs("10.0.1.7"), want: addrs("10.0.2.7")},
		"only the IPv4 address is reserved":              {held: []ledger.NodeAddresses{{Node: "node-1", Addrs: addrs("10.0.1.7")}}, has: addrs("10.0.1.7", "fd00::7")},
	} {
		var reserved []reservation.Address
		for _, ip := range c.reserved {
			reserved = append(reserved, reservation.Address{Addr: netip.MustParseAddr(ip)})
		}
		node, got := conformance.MissingReserved(c.held, reserved, c.has)
		if diff := cmp.Diff(c.want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" || node != c.node {
			t.Errorf("%s: node %q, want %q; missing IPs (-want +got): %s", name, node, c.node, diff)
		}
	}
}
