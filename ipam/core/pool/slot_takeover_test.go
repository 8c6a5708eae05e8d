// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package pool_test

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fixedip.io/fixedip/ipam/core/pool"
)

func TestTakeOver(t *testing.T) {
	const subnet = "10.0.1.0/24"
	gone := pool.OwnedEntry("db", "web-x", "Deployment", "web")
	next := pool.OwnedEntry("db", "web-y", "Deployment", "web")
	a, b := netip.MustParseAddr("10.0.1.9"), netip.MustParseAddr("fd00:1::9")
	released := pool.CooldownEntry("", time.Unix(1, 0))
	for name, c := range map[string]struct {
		entries map[netip.Addr]pool.Entry
		used    map[netip.Addr]string
		want    []pool.EntryChange
		wantErr string
	}{
		"from a pod that is gone":      {entries: map[netip.Addr]pool.Entry{a: gone, b: gone}, want: []pool.EntryChange{{Addr: a, From: &gone, To: &next, Unlisted: true}, {Addr: b, From: &gone, To: &next, Unlisted: true}}},
		"with a family that it lacked": {entries: map[netip.Addr]pool.Entry{a: gone}, want: []pool.EntryChange{{Addr: a, From: &gone, To: &next, Unlisted: true}, {Addr: b, To: &next, Unlisted: true}}},
		"it stands already":            {entries: map[netip.Addr]pool.Entry{a: next, b: next}},
		"released meanwhile":           {entries: map[netip.Addr]pool.Entry{a: released, b: gone}, wantErr: "IP 10.0.1.9 on node n is cooling down after its release at 1970-01-01T00:00:01Z"},
		"listed as its own":            {entries: map[netip.Addr]pool.Entry{a: gone, b: gone}, used: map[netip.Addr]string{b: next.Owner}, want: []pool.EntryChange{{Addr: a, From: &gone, To: &next, Unlisted: true}, {Addr: b, From: &gone, To: &next}}},
		"still listed":                 {entries: map[netip.Addr]pool.Entry{a: gone, b: gone}, used: map[netip.Addr]string{b: "db/web-x"}, wantErr: "IP fd00:1::9 on node n is still in use by pod db/web-x"},
		"another was faster":           {entries: map[netip.Addr]pool.Entry{a: pool.OwnedEntry("db", "web-z", "Deployment", "web"), b: gone}, wantErr: "IP 10.0.1.9 on node n belongs to pod db/web-z"},
		"for another workload":         {entries: map[netip.Addr]pool.Entry{a: pool.OwnedEntry("db", "web-x", "Deployment", "shop"), b: gone}, wantErr: "IP 10.0.1.9 on node n belongs to pod db/web-x"},
		"it has another address":       {entries: map[netip.Addr]pool.Entry{a: gone, b: gone, netip.MustParseAddr("10.0.1.8"): next}, wantErr: "pod db/web-y already has IP 10.0.1.8 on node n, and can't have IP 10.0.1.9 there as well"},
		"a dynamic entry by now":       {entries: map[netip.Addr]pool.Entry{a: {}, b: gone}, wantErr: "IP 10.0.1.9 on node n is a dynamic entry, which any pod may be using"},
	} {
		t.Run(name, func(t *testing.T) {
			n := pool.NodePool{Name: "n", Subnets: []netip.Prefix{netip.MustParsePrefix(subnet), netip.MustParsePrefix("fd00:1::/64")}, Entries: c.entries, Used: c.used}
			got, err := n.TakeOver([]netip.Addr{a, b}, gone.Owner, next)
			message := ""
			if err != nil {
				message = err.Error()
			}
			if message != c.wantErr || (err != nil) != errors.Is(err, pool.ErrTaken) {
				t.Fatalf("error %q, want %q", message, c.wantErr)
			}
			if diff := cmp.Diff(c.want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("(-want +got): %s", diff)
			}
		})
	}
}
