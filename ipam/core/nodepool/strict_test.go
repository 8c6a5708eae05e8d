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

func runs(name string, ips ...string) nodepool.PodAddresses {
	o := nodepool.PodAddresses{Namespace: "db", Name: name}
	for _, ip := range ips {
		o.Addrs = append(o.Addrs, addr(ip))
	}
	return o
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
		node  pool.NodePool
		pods  []nodepool.PodAddresses
		kept  string
		want  map[string]pool.Entry
		short int
	}{
		"a new node: its own addresses from the bottom": {node: node(nil), want: own(nil)},
		"pods follow, in order": {
			node: node(own(nil)), pods: []nodepool.PodAddresses{runs("web"), runs("other")}, want: map[string]pool.Entry{"10.0.1.4": other, "10.0.1.5": web}},
		"existing entries of every kind stay": {
			node: node(own(map[string]pool.Entry{"10.0.1.6": pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql"), "10.0.1.4": web})), pods: []nodepool.PodAddresses{runs("web"), runs("mysql-0")}},
		"around what is used, kept back or resting": {
			node: leaving(own(map[string]pool.Entry{"10.0.1.6": pool.MovedEntry("m", "db/x")}), map[string]pool.Handshake{"10.0.1.4": pool.Released}), pods: []nodepool.PodAddresses{runs("web")}, want: map[string]pool.Entry{"10.0.1.5": web}},
		"past what a FixedIP keeps": {
			node: node(own(nil)), pods: []nodepool.PodAddresses{runs("web")}, kept: "10.0.1.4", want: map[string]pool.Entry{"10.0.1.5": web}},
		"a full subnet": {
			node: node(own(map[string]pool.Entry{"10.0.1.4": other, "10.0.1.5": pool.ForOwner("db/a"), "10.0.1.6": pool.ForOwner("db/b")})), pods: []nodepool.PodAddresses{runs("web")}, short: 1},
		"turned strict: what is used becomes its user's": {
			node: usedBy(node(map[string]pool.Entry{"10.0.1.1": {}, "10.0.1.2": {}, "10.0.1.5": {}}), map[string]string{"10.0.1.1": "db/web", "10.0.1.2": "health", "10.0.1.5": "router"}),
			pods: []nodepool.PodAddresses{runs("web", "10.0.1.1")},
			want: map[string]pool.Entry{"10.0.1.1": web, "10.0.1.2": health, "10.0.1.5": router, "10.0.1.3": ingress}},
		"turned strict: nothing for a pod that may still get a dynamic entry": {
			node: usedBy(node(own(map[string]pool.Entry{"10.0.1.4": {}})), map[string]string{"10.0.1.1": "router"}), pods: []nodepool.PodAddresses{runs("web")}},
		"turned strict: the dynamic entry is kept back, the pod gets its own": {
			node: usedBy(leaving(own(map[string]pool.Entry{"10.0.1.4": {}}), map[string]pool.Handshake{"10.0.1.4": pool.MarkedForRelease}), map[string]string{"10.0.1.1": "router"}),
			pods: []nodepool.PodAddresses{runs("web")}, want: map[string]pool.Entry{"10.0.1.5": web}},
		"turned strict: an agent that has not reported may have its router anywhere": {
			node: unreported(node(map[string]pool.Entry{"10.0.1.1": {}, "10.0.1.2": {}}))},
		"the agent alone says so: it may be an earlier pod of the name": {
			node: usedBy(node(own(map[string]pool.Entry{"10.0.1.4": {}})), map[string]string{"10.0.1.4": "db/web"}), pods: []nodepool.PodAddresses{runs("web")}},
		"the status alone says so: the agent is late": {
			node: usedBy(node(own(map[string]pool.Entry{"10.0.1.4": {}})), map[string]string{"10.0.1.1": "router"}), pods: []nodepool.PodAddresses{runs("web", "10.0.1.4")}},
		"an earlier pod of the name has another": {
			node: usedBy(node(own(map[string]pool.Entry{"10.0.1.4": {}, "10.0.1.5": {}})), map[string]string{"10.0.1.4": "db/web", "10.0.1.5": "db/web"}),
			pods: []nodepool.PodAddresses{runs("web", "10.0.1.5")}, want: map[string]pool.Entry{"10.0.1.5": web}},
		"a pod that runs with what the pool does not list": {
			node: node(own(nil)), pods: []nodepool.PodAddresses{runs("web", "10.0.9.9")}},
	} {
		kept := func(a netip.Addr) bool { return c.kept != "" && a == addr(c.kept) }
		edits, short := nodepool.Strict(c.node, c.pods, kept)
		got := map[string]pool.Entry{}
		for _, e := range edits {
			if now, exists := c.node.Entries[e.Addr]; exists != (e.From != nil) || exists && now != *e.From {
				t.Errorf("%s: the edit of %s is not made from what is there", name, e.Addr)
			}
			got[e.Addr.String()] = *e.To
		}
		if c.want == nil {
			c.want = map[string]pool.Entry{}
		}
		if diff := cmp.Diff(c.want, got); diff != "" || short != c.short {
			t.Errorf("%s: short of %d, want %d; (-want +got): %s", name, short, c.short, diff)
		}
		// A second call finds nothing to do.
		if again, _ := nodepool.Strict(c.node.With(edits), c.pods, kept); len(again) > 0 {
			t.Errorf("%s: a second look wants %v", name, edited(again))
		}
	}
}

func TestVacant(t *testing.T) {
	n := node(map[string]pool.Entry{
		"10.0.1.1": pool.UnreservedEntry("db", "gone"),
		"10.0.1.2": pool.UnreservedEntry("db", "gone-but-used"),
		"10.0.1.3": pool.UnreservedEntry("db", "here"),
		"10.0.1.4": pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql"),
		"10.0.1.5": pool.ForOwner("db/by-hand"),
	}, "10.0.1.2")
	vacant := nodepool.StaleUnreserved(n, func(_, name string) bool { return name == "here" })
	if want := map[netip.Addr]pool.Entry{addr("10.0.1.1"): pool.UnreservedEntry("db", "gone")}; len(vacant) != 1 || vacant[addr("10.0.1.1")] != want[addr("10.0.1.1")] {
		t.Errorf("vacant %v, want %v", vacant, want)
	}
}

func TestWatermarkForNode(t *testing.T) {
	for name, c := range map[string]struct {
		mark       nodepool.Watermark
		pods, size int64
		want       int
	}{
		"as many as the node takes pods, and its own": {pods: 110, size: 254, want: 113},
		"no more than half of the subnet":             {pods: 110, size: 62, want: 31},
		"its own in any case":                         {pods: 110, size: 2, want: 3},
		"what was said":                               {mark: nodepool.Watermark{Max: 7}, pods: 110, size: 254, want: 7},
	} {
		if got := c.mark.ForNode(c.pods, c.size).Max; got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
