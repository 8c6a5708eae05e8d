// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package nodepool_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fixedip.io/fixedip/ipam/core/nodepool"
	"fixedip.io/fixedip/ipam/core/pool"
)

// pod returns a pod of namespace db with the IPs in its status.
func pod(name string, ips ...string) nodepool.PodAddresses {
	p := nodepool.PodAddresses{Namespace: "db", Name: name}
	for _, ip := range ips {
		p.Addrs = append(p.Addrs, addr(ip))
	}
	return p
}

// usedBy adds addresses to those that the agent of a node reports as used. Key: the address. Value: the owner.
func usedBy(n pool.NodePool, used map[string]string) pool.NodePool {
	for a, owner := range used {
		n.Used[addr(a)] = owner
	}
	return n
}

func TestStrict(t *testing.T) {
	router, health, ingress := pool.ForOwner("router"), pool.ForOwner("health"), pool.ForOwner("ingress")
	own := func(more map[string]pool.Entry) map[string]pool.Entry {
		all := map[string]pool.Entry{"10.0.1.1": router, "10.0.1.2": health, "10.0.1.3": ingress}
		for a, e := range more {
			all[a] = e
		}
		return all
	}
	web, other := pool.UnreservedEntry("db", "web"), pool.UnreservedEntry("db", "other")
	for name, c := range map[string]struct {
		node     pool.NodePool
		pods     []nodepool.PodAddresses
		reserved string
		want     map[string]pool.Entry
		short    int
	}{
		"new node: the lowest addresses for the node itself": {node: node(nil), want: own(nil)},
		"pods get the next addresses in the order of their names": {
			node: node(own(nil)), pods: []nodepool.PodAddresses{pod("web"), pod("other")}, want: map[string]pool.Entry{"10.0.1.4": other, "10.0.1.5": web}},
		"owned entries do not change, and their pods get no other entry": {
			node: node(own(map[string]pool.Entry{"10.0.1.6": pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql"), "10.0.1.4": web})), pods: []nodepool.PodAddresses{pod("web"), pod("mysql-0")}},
		"moved and releasing addresses are skipped": {
			node: withHandshakes(own(map[string]pool.Entry{"10.0.1.4": pool.MovedEntry("m", "db/x")}), map[string]pool.Handshake{"10.0.1.5": pool.Released}), pods: []nodepool.PodAddresses{pod("web")}, want: map[string]pool.Entry{"10.0.1.6": web}},
		"a reserved address is skipped": {
			node: node(own(nil)), pods: []nodepool.PodAddresses{pod("web")}, reserved: "10.0.1.4", want: map[string]pool.Entry{"10.0.1.5": web}},
		"a full subnet": {
			node: node(own(map[string]pool.Entry{"10.0.1.4": other, "10.0.1.5": pool.ForOwner("db/a"), "10.0.1.6": pool.ForOwner("db/b")})), pods: []nodepool.PodAddresses{pod("web")}, short: 1},
		"turned strict: a dynamic entry in use becomes owned by its user": {
			node: usedBy(node(map[string]pool.Entry{"10.0.1.1": {}, "10.0.1.2": {}, "10.0.1.5": {}}), map[string]string{"10.0.1.1": "db/web", "10.0.1.2": "health", "10.0.1.5": "router"}),
			pods: []nodepool.PodAddresses{pod("web", "10.0.1.1")},
			want: map[string]pool.Entry{"10.0.1.1": web, "10.0.1.2": health, "10.0.1.5": router, "10.0.1.3": ingress}},
		"turned strict: no entry for a pod that may still get a dynamic one": {
			node: usedBy(node(own(map[string]pool.Entry{"10.0.1.4": {}})), map[string]string{"10.0.1.1": "router"}), pods: []nodepool.PodAddresses{pod("web")}},
		"turned strict: the dynamic entry is withheld, and the pod gets an entry": {
			node: usedBy(withHandshakes(own(map[string]pool.Entry{"10.0.1.4": {}}), map[string]pool.Handshake{"10.0.1.4": pool.MarkedForRelease}), map[string]string{"10.0.1.1": "router"}),
			pods: []nodepool.PodAddresses{pod("web")}, want: map[string]pool.Entry{"10.0.1.5": web}},
		"turned strict: no entry for the router before the agent has reported": {
			node: unreported(node(map[string]pool.Entry{"10.0.1.1": {}, "10.0.1.2": {}}))},
		"only the agent reports the address: an earlier pod with that name may have it": {
			node: usedBy(node(own(map[string]pool.Entry{"10.0.1.4": {}})), map[string]string{"10.0.1.4": "db/web"}), pods: []nodepool.PodAddresses{pod("web")}},
		"only the status has the address: the agent has not reported it yet": {
			node: usedBy(node(own(map[string]pool.Entry{"10.0.1.4": {}})), map[string]string{"10.0.1.1": "router"}), pods: []nodepool.PodAddresses{pod("web", "10.0.1.4")}},
		"an earlier pod with that name has another address": {
			node: usedBy(node(own(map[string]pool.Entry{"10.0.1.4": {}, "10.0.1.5": {}})), map[string]string{"10.0.1.4": "db/web", "10.0.1.5": "db/web"}),
			pods: []nodepool.PodAddresses{pod("web", "10.0.1.5")}, want: map[string]pool.Entry{"10.0.1.5": web}},
		"a pod runs with an address that has no entry": {
			node: node(own(nil)), pods: []nodepool.PodAddresses{pod("web", "10.0.9.9")}},
	} {
		reserved := func(a netip.Addr) bool { return c.reserved != "" && a == addr(c.reserved) }
		edits, short := nodepool.Strict(c.node, c.pods, reserved)
		got := map[string]pool.Entry{}
		for _, e := range edits {
			if now, exists := c.node.Entries[e.Addr]; exists != (e.From != nil) || exists && now != *e.From {
				t.Errorf("%s: the edit of %s does not require the current entry", name, e.Addr)
			}
			got[e.Addr.String()] = *e.To
		}
		if c.want == nil {
			c.want = map[string]pool.Entry{}
		}
		if diff := cmp.Diff(c.want, got); diff != "" || short != c.short {
			t.Errorf("%s: got short %d, want %d; entries (-want +got): %s", name, short, c.short, diff)
		}
		if again, _ := nodepool.Strict(c.node.With(edits), c.pods, reserved); len(again) > 0 {
			t.Errorf("%s: a second call returned edits of %v, want none", name, edited(again))
		}
	}
}

func TestStaleUnreserved(t *testing.T) {
	n := node(map[string]pool.Entry{
		"10.0.1.1": pool.UnreservedEntry("db", "gone"),
		"10.0.1.2": pool.UnreservedEntry("db", "gone-but-used"),
		"10.0.1.3": pool.UnreservedEntry("db", "here"),
		"10.0.1.4": pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql"),
		"10.0.1.5": pool.ForOwner("db/by-hand"),
	}, "10.0.1.2")
	stale := nodepool.StaleUnreserved(n, func(_, name string) bool { return name == "here" })
	if want := map[netip.Addr]pool.Entry{addr("10.0.1.1"): pool.UnreservedEntry("db", "gone")}; len(stale) != 1 || stale[addr("10.0.1.1")] != want[addr("10.0.1.1")] {
		t.Errorf("got stale entries %v, want %v", stale, want)
	}
}

func TestWatermarkForNode(t *testing.T) {
	for name, c := range map[string]struct {
		mark       nodepool.Watermark
		pods, size int64
		want       int
	}{
		"the number of pods and of addresses of the node itself": {pods: 110, size: 254, want: 113},
		"at most half of the subnet":                             {pods: 110, size: 62, want: 31},
		"at least the addresses of the node itself":              {pods: 110, size: 2, want: 3},
		"a configured maximum":                                   {mark: nodepool.Watermark{Max: 7}, pods: 110, size: 254, want: 7},
	} {
		if got := c.mark.ForNode(c.pods, c.size).Max; got != c.want {
			t.Errorf("%s: got Max %d, want %d", name, got, c.want)
		}
	}
}
