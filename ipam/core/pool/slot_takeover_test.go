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
	former := pool.OwnedEntry("db", "web-x", "Deployment", "web")
	next := pool.OwnedEntry("db", "web-y", "Deployment", "web")
	a, b := netip.MustParseAddr("10.0.1.9"), netip.MustParseAddr("fd00:1::9")
	released := pool.CooldownEntry("", time.Unix(1, 0))
	for name, c := range map[string]struct {
		entries map[netip.Addr]pool.Entry
		used    map[netip.Addr]string
		want    []pool.EntryChange
		wantErr string
	}{
		"from a former pod": {entries: map[netip.Addr]pool.Entry{a: former, b: former}, want: []pool.EntryChange{{Addr: a, From: &former, To: &next, RequireUnused: true}, {Addr: b, From: &former, To: &next, RequireUnused: true}}},
		"with a family that the former pod did not have":        {entries: map[netip.Addr]pool.Entry{a: former}, want: []pool.EntryChange{{Addr: a, From: &former, To: &next, RequireUnused: true}, {Addr: b, To: &next, RequireUnused: true}}},
		"the entries are written already":                       {entries: map[netip.Addr]pool.Entry{a: next, b: next}},
		"one address was released":                              {entries: map[netip.Addr]pool.Entry{a: released, b: former}, wantErr: "IP 10.0.1.9 on node n has been cooling down since 1970-01-01T00:00:01Z"},
		"the agent reports an address for the new pod":          {entries: map[netip.Addr]pool.Entry{a: former, b: former}, used: map[netip.Addr]string{b: next.Owner()}, want: []pool.EntryChange{{Addr: a, From: &former, To: &next, RequireUnused: true}, {Addr: b, From: &former, To: &next}}},
		"the agent still reports an address for the former pod": {entries: map[netip.Addr]pool.Entry{a: former, b: former}, used: map[netip.Addr]string{b: "db/web-x"}, wantErr: "IP fd00:1::9 on node n is still in use by pod db/web-x"},
		"another pod has taken over one address":                {entries: map[netip.Addr]pool.Entry{a: pool.OwnedEntry("db", "web-z", "Deployment", "web"), b: former}, wantErr: "IP 10.0.1.9 on node n belongs to pod db/web-z"},
		"one entry is for another workload":                     {entries: map[netip.Addr]pool.Entry{a: pool.OwnedEntry("db", "web-x", "Deployment", "shop"), b: former}, wantErr: "IP 10.0.1.9 on node n belongs to pod db/web-x"},
		"the new pod has another address":                       {entries: map[netip.Addr]pool.Entry{a: former, b: former, netip.MustParseAddr("10.0.1.8"): next}, wantErr: "the pool of node n already has IP 10.0.1.8 for pod db/web-y, which can't have IP 10.0.1.9 there as well"},
		"one entry is dynamic":                                  {entries: map[netip.Addr]pool.Entry{a: {}, b: former}, wantErr: "IP 10.0.1.9 has a dynamic entry in the pool of node n, so that any pod may be using it"},
	} {
		t.Run(name, func(t *testing.T) {
			n := pool.NodePool{Name: "n", Subnets: []netip.Prefix{netip.MustParsePrefix(subnet), netip.MustParsePrefix("fd00:1::/64")}, Entries: c.entries, Used: c.used}
			got, err := n.TakeOver([]netip.Addr{a, b}, former.Owner(), next)
			message := ""
			if err != nil {
				message = err.Error()
			}
			if message != c.wantErr || (err != nil) != errors.Is(err, pool.ErrTaken) {
				t.Fatalf("got error %q, want %q", message, c.wantErr)
			}
			if diff := cmp.Diff(c.want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("edits (-want +got): %s", diff)
			}
		})
	}
}
