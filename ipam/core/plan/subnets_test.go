package plan_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/plan"
	"fixedip.io/fixedip/ipam/core/pool"
)

func TestAssign(t *testing.T) {
	pools := []address.ClusterPool{{CIDR: netip.MustParsePrefix("10.0.0.0/28"), MaskSize: 30}}
	dual := append(pools, address.ClusterPool{CIDR: netip.MustParsePrefix("fd00::/62"), MaskSize: 64})
	subnet := netip.MustParsePrefix
	mysql := pool.Owned("db", "mysql-0", "StatefulSet", "mysql")
	keeps := func(a, node string) plan.Kept { return plan.Kept{Addr: addr(a), Node: node, Entry: mysql} }
	for name, c := range map[string]struct {
		pools []address.ClusterPool
		taken []netip.Prefix
		kept  []plan.Kept
		want  plan.Assignment
	}{
		"the first node":  {pools: pools, want: plan.Assignment{Subnets: []netip.Prefix{subnet("10.0.0.0/30")}}},
		"in each family":  {pools: dual, want: plan.Assignment{Subnets: []netip.Prefix{subnet("10.0.0.0/30"), subnet("fd00::/64")}}},
		"beside others":   {pools: pools, taken: []netip.Prefix{subnet("10.0.0.0/30"), subnet("10.0.0.8/29")}, want: plan.Assignment{Subnets: []netip.Prefix{subnet("10.0.0.4/30")}}},
		"nothing is left": {pools: dual, taken: []netip.Prefix{subnet("10.0.0.0/28")}, want: plan.Assignment{Subnets: []netip.Prefix{subnet("fd00::/64")}, Exhausted: []address.Family{address.IPv4}}},
		"a node that comes back has its subnet and all that is kept in it": {
			pools: pools, kept: []plan.Kept{keeps("10.0.0.10", "node-1")},
			want: plan.Assignment{Subnets: []netip.Prefix{subnet("10.0.0.8/30")}, Entries: map[netip.Addr]pool.Entry{addr("10.0.0.10"): mysql}}},
		"another node does not get it": {
			pools: pools, taken: []netip.Prefix{subnet("10.0.0.0/29")}, kept: []plan.Kept{keeps("10.0.0.10", "node-9")},
			want: plan.Assignment{Subnets: []netip.Prefix{subnet("10.0.0.12/30")}}},
		"not even as the last": {
			pools: pools, taken: []netip.Prefix{subnet("10.0.0.0/29"), subnet("10.0.0.12/30")}, kept: []plan.Kept{keeps("10.0.0.10", "node-9")},
			want: plan.Assignment{Exhausted: []address.Family{address.IPv4}}},
		"what is kept in a subnet that has a node is that node's": {
			pools: pools, taken: []netip.Prefix{subnet("10.0.0.8/30")}, kept: []plan.Kept{keeps("10.0.0.10", "node-1")},
			want: plan.Assignment{Subnets: []netip.Prefix{subnet("10.0.0.12/30")}}},
	} {
		t.Run(name, func(t *testing.T) {
			if c.want.Entries == nil {
				c.want.Entries = map[netip.Addr]pool.Entry{}
			}
			got := plan.Assign("node-1", c.pools, c.taken, c.kept)
			if diff := cmp.Diff(c.want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("(-want +got): %s", diff)
			}
		})
	}
}
