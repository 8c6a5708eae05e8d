// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"net/netip"
	"reflect"
	"testing"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
)

// version returns a version of the CiliumNode node-1 with a /28 subnet.
func version(uid, resourceVersion string, generation int64, entries map[netip.Addr]pool.Entry) pool.NodePool {
	return pool.NodePool{
		Name: "node-1", UID: uid, ResourceVersion: resourceVersion, Generation: generation,
		Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/28")}, Entries: entries,
	}
}

// TestObserveWrite checks that an entry that this program has written counts at once, and that an older version from the
// watch does not replace it (finding S2 in docs/project/findings.md).
func TestObserveWrite(t *testing.T) {
	addr := netip.MustParseAddr("10.0.0.14")
	claimed := map[netip.Addr]pool.Entry{addr: pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql")}
	held := []ledger.NodeAddresses{{Node: "node-1", Addrs: []netip.Addr{addr}}}
	write := version("a", "20", 5, claimed)

	for name, tc := range map[string]struct {
		before []pool.NodePool
		write  pool.NodePool
		after  []pool.NodePool
		want   []ledger.NodeAddresses
	}{
		"the write counts before the watch shows it": {
			before: []pool.NodePool{version("a", "10", 4, nil)}, write: write, want: held,
		},
		"the watch shows a version that is older than the write": {
			before: []pool.NodePool{version("a", "10", 4, nil)}, write: write,
			after: []pool.NodePool{version("a", "19", 4, nil)}, want: held,
		},
		"resource versions that are not numbers": {
			before: []pool.NodePool{version("a", "x", 4, nil)}, write: version("a", "y", 5, claimed),
			after: []pool.NodePool{version("a", "z", 4, nil)}, want: held,
		},
		"another write removes the entry": {
			before: []pool.NodePool{version("a", "10", 4, nil)}, write: write,
			after: []pool.NodePool{version("a", "21", 6, nil)},
		},
		"once the watch has shown the write, the watch alone decides": {
			// After a restore of etcd from a backup, versions may begin again at lower numbers.
			before: []pool.NodePool{version("a", "10", 4, nil)}, write: write,
			after: []pool.NodePool{write, version("a", "5", 2, nil)},
		},
		"the watch has shown a newer version before the write returns": {
			before: []pool.NodePool{version("a", "10", 4, nil), version("a", "21", 6, nil)}, write: write,
		},
		"the CiliumNode was deleted and created again": {
			before: []pool.NodePool{version("b", "30", 1, nil)}, write: write,
		},
		"a CiliumNode with another UID replaces the written one": {
			before: []pool.NodePool{version("a", "10", 4, nil)}, write: write,
			after: []pool.NodePool{version("b", "15", 1, nil)},
		},
		"a node that the watch has not shown": {write: write},
	} {
		t.Run(name, func(t *testing.T) {
			l := ledger.New()
			for _, n := range tc.before {
				l.SetNode(n)
			}
			l.ObserveWrite(tc.write)
			for _, n := range tc.after {
				l.SetNode(n)
			}
			if got := l.Held("db/mysql-0"); !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got Held %v, want %v", got, tc.want)
			}
		})
	}
}

// TestNodeChange checks the differences that SetNode and ObserveWrite return, and the number of available addresses. If no
// field changed on which a decision depends, the difference is the zero value.
func TestNodeChange(t *testing.T) {
	addr, other := netip.MustParseAddr("10.0.0.14"), netip.MustParseAddr("10.0.0.13")
	owned := map[netip.Addr]pool.Entry{addr: pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql")}
	used := func(n pool.NodePool, addrs ...netip.Addr) pool.NodePool {
		n.Used = map[netip.Addr]string{}
		for _, a := range addrs {
			n.Used[a] = "default/client"
		}
		return n
	}
	l := ledger.New()
	for _, step := range []struct {
		name      string
		do        func() ledger.NodeChange
		want      ledger.NodeChange
		available int64
	}{
		{"the node appears", func() ledger.NodeChange { return l.SetNode(version("a", "1", 1, nil)) },
			ledger.NodeChange{Appeared: true, Freed: 14, Subnets: version("", "", 0, nil).Subnets}, 14},
		{"a report without a change", func() ledger.NodeChange { return l.SetNode(version("a", "2", 1, nil)) },
			ledger.NodeChange{}, 14},
		{"an address comes into use", func() ledger.NodeChange { return l.SetNode(used(version("a", "3", 1, nil), other)) },
			ledger.NodeChange{Status: true, Fixed: true}, 13},
		{"the address is no longer in use", func() ledger.NodeChange { return l.SetNode(used(version("a", "4", 1, nil))) },
			ledger.NodeChange{Status: true, Fixed: true, Freed: 1}, 14},
		{"a write of this program", func() ledger.NodeChange { return l.ObserveWrite(version("a", "6", 2, owned)) },
			ledger.NodeChange{Entries: true, Owners: []string{"db/mysql-0"}, Workloads: []string{"db/StatefulSet/mysql"}}, 13},
		{"an older version from the watch", func() ledger.NodeChange { return l.SetNode(used(version("a", "5", 1, nil), other)) },
			ledger.NodeChange{}, 13},
		{"the watch shows the write", func() ledger.NodeChange { return l.SetNode(version("a", "6", 2, owned)) },
			ledger.NodeChange{}, 13},
		{"a dynamic entry is added", func() ledger.NodeChange {
			return l.SetNode(version("a", "7", 3, map[netip.Addr]pool.Entry{addr: owned[addr], other: {}}))
		}, ledger.NodeChange{Entries: true}, 12},
		{"a dynamic address comes into use", func() ledger.NodeChange {
			return l.SetNode(used(version("a", "8", 3, map[netip.Addr]pool.Entry{addr: owned[addr], other: {}}), other))
		}, ledger.NodeChange{Status: true}, 12},
		{"a fixed address comes into use", func() ledger.NodeChange {
			return l.SetNode(used(version("a", "9", 3, map[netip.Addr]pool.Entry{addr: owned[addr], other: {}}), other, addr))
		}, ledger.NodeChange{Status: true, Fixed: true, Reported: []string{"db/StatefulSet/mysql"}, ReportedOwners: []string{"db/mysql-0"}}, 12},
	} {
		got := step.do()
		if len(got.Owners) == 0 {
			got.Owners, got.Workloads = nil, nil
		}
		if len(got.Reported) == 0 {
			got.Reported, got.ReportedOwners = nil, nil
		}
		if !reflect.DeepEqual(got, step.want) {
			t.Errorf("%s: got %+v, want %+v", step.name, got, step.want)
		}
		if available := l.Available("node-1", address.IPv4); available != step.available {
			t.Errorf("%s: got Available %d, want %d", step.name, available, step.available)
		}
	}
}
