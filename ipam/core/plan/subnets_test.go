// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/plan"
	"fixedip.io/fixedip/ipam/core/pool"
)

var (
	subnet = netip.MustParsePrefix
	// clock is the time of all decisions here.
	clock = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	// byValue compares addresses, which have unexported fields.
	byValue = cmp.Options{
		cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
		cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	}
)

func subnetsOf(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range texts {
		out = append(out, subnet(s))
	}
	return out
}

// lost is an address kept for pod mysql-0, or another, on a node that went a minute ago.
func lost(a, node string, change ...func(*plan.Kept)) plan.Kept {
	k := plan.Kept{
		Addr: addr(a), Node: node, Entry: pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql"),
		Record: types.NamespacedName{Namespace: "db", Name: "mysql-0"}, Since: clock.Add(-time.Minute),
	}
	for _, c := range change {
		c(&k)
	}
	return k
}

func untold(k *plan.Kept)  { k.Since = time.Time{} }
func mayMove(k *plan.Kept) { k.Failover = v1alpha1.Migrate }
func since(d time.Duration) func(*plan.Kept) {
	return func(k *plan.Kept) { k.Since = clock.Add(-d) }
}
func forPod(name string) func(*plan.Kept) {
	return func(k *plan.Kept) {
		k.Entry, k.Record.Name = pool.OwnedEntry("db", name, "StatefulSet", "mysql"), name
	}
}

func TestKeeps(t *testing.T) {
	record := &v1alpha1.FixedIP{
		ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "mysql-0"},
		Spec: v1alpha1.FixedIPSpec{
			IPs: []string{"10.0.0.10", "soon", "fd00::a"}, NodeName: "node-1", PodName: "mysql-0", Failover: v1alpha1.Migrate,
			Owner: v1alpha1.OwnerReference{Kind: "StatefulSet", Name: "mysql"},
		},
	}
	gone := metav1.Condition{Type: v1alpha1.ConditionHomed, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNodeGone, LastTransitionTime: metav1.NewTime(clock)}
	overlap, back := gone, gone
	overlap.Reason = v1alpha1.ReasonSubnetOverlap
	back.Status = metav1.ConditionTrue
	for name, c := range map[string]struct {
		conditions []metav1.Condition
		since      func(*plan.Kept)
	}{
		"its node was never gone":     {nil, untold},
		"its node is gone":            {[]metav1.Condition{gone}, since(0)},
		"its node was gone":           {[]metav1.Condition{back}, untold},
		"its subnet overlaps another": {[]metav1.Condition{overlap}, untold},
	} {
		record.Status.Conditions = c.conditions
		want := []plan.Kept{lost("10.0.0.10", "node-1", mayMove, c.since), lost("fd00::a", "node-1", mayMove, c.since)}
		if diff := cmp.Diff(want, plan.Keeps(record), byValue); diff != "" {
			t.Errorf("%s (-want +got): %s", name, diff)
		}
	}
}

func TestAssign(t *testing.T) {
	pools := []address.ClusterPool{{CIDR: subnet("10.0.0.0/28"), MaskSize: 30}}
	dual := append(pools, address.ClusterPool{CIDR: subnet("fd00::/62"), MaskSize: 64})
	two := append(pools, address.ClusterPool{CIDR: subnet("10.1.0.0/24"), MaskSize: 25})
	inherit := plan.SubnetRules{Pools: pools, Policy: plan.Inherit, Hold: 30 * time.Second}
	with := func(change func(*plan.SubnetRules)) plan.SubnetRules {
		r := inherit
		change(&r)
		return r
	}
	hold := with(func(r *plan.SubnetRules) { r.Policy = plan.Hold })
	late := with(func(r *plan.SubnetRules) { r.Hold = time.Hour })
	brought := plan.SubnetRules{Policy: plan.Inherit}
	successor := plan.Joiner{SuccessorOf: "node-9"}
	mine, others := lost("10.0.0.10", "node-1"), lost("10.0.0.10", "node-9")
	carved := func(s ...string) plan.Assignment {
		return plan.Assignment{Subnets: subnetsOf(s...), Origin: plan.Carved}
	}
	had := func(origin plan.Origin, from string, kept []plan.Kept, s ...string) plan.Assignment {
		return plan.Assignment{Subnets: subnetsOf(s...), Kept: kept, Origin: origin, From: from}
	}
	for name, c := range map[string]struct {
		rules   plan.SubnetRules
		joiner  plan.Joiner
		taken   []netip.Prefix
		kept    []plan.Kept
		present string
		want    plan.Assignment
	}{
		"the first node": {rules: inherit, want: carved("10.0.0.0/30")},
		"in each family": {rules: with(func(r *plan.SubnetRules) { r.Pools = dual }), want: carved("10.0.0.0/30", "fd00::/64")},
		"in the family that it lacks": {
			rules: with(func(r *plan.SubnetRules) { r.Pools = dual }), joiner: plan.Joiner{Subnets: subnetsOf("10.0.0.0/30")}, taken: subnetsOf("10.0.0.0/30"),
			want: carved("fd00::/64")},
		"beside others": {rules: inherit, taken: subnetsOf("10.0.0.0/30", "10.0.0.8/29"), want: carved("10.0.0.4/30")},
		"from the second pool, of another size": {
			rules: with(func(r *plan.SubnetRules) { r.Pools = two }), taken: subnetsOf("10.0.0.0/28"), want: carved("10.1.0.0/25")},
		"nothing is left": {
			rules: with(func(r *plan.SubnetRules) { r.Pools = dual }), taken: subnetsOf("10.0.0.0/28"),
			want: plan.Assignment{Subnets: subnetsOf("fd00::/64"), Origin: plan.Carved, Exhausted: []address.Family{address.IPv4}}},
		"a node that comes back has its subnet and all that is kept in it": {
			rules: late, kept: []plan.Kept{mine}, want: had(plan.Returned, "node-1", []plan.Kept{mine}, "10.0.0.8/30")},
		"a node that comes back has all its subnets": {
			rules: late, kept: []plan.Kept{mine, lost("10.0.0.1", "node-1")},
			want: had(plan.Returned, "node-1", []plan.Kept{lost("10.0.0.1", "node-1"), mine}, "10.0.0.0/30", "10.0.0.8/30")},
		"a node that comes back has a new one in the other family": {
			rules: with(func(r *plan.SubnetRules) { r.Pools = dual }), kept: []plan.Kept{mine},
			want: had(plan.Returned, "node-1", []plan.Kept{mine}, "10.0.0.8/30", "fd00::/64")},
		"the next node inherits": {
			rules: inherit, kept: []plan.Kept{others}, want: had(plan.Inherited, "node-9", []plan.Kept{others}, "10.0.0.8/30")},
		"its own rather than another's": {
			rules: inherit, kept: []plan.Kept{lost("10.0.0.1", "node-0"), mine}, want: had(plan.Returned, "node-1", []plan.Kept{mine}, "10.0.0.8/30")},
		"the one that waits longest": {
			rules: inherit, kept: []plan.Kept{lost("10.0.0.1", "node-0"), lost("10.0.0.10", "node-9", since(2*time.Minute))},
			want: had(plan.Inherited, "node-9", []plan.Kept{lost("10.0.0.10", "node-9", since(2*time.Minute))}, "10.0.0.8/30")},
		"not before the hold time":          {rules: late, taken: subnetsOf("10.0.0.0/29"), kept: []plan.Kept{others}, want: carved("10.0.0.12/30")},
		"not before anybody has seen it":    {rules: inherit, taken: subnetsOf("10.0.0.0/29"), kept: []plan.Kept{lost("10.0.0.10", "node-9", untold)}, want: carved("10.0.0.12/30")},
		"not while the other node is there": {rules: inherit, taken: subnetsOf("10.0.0.0/29"), kept: []plan.Kept{others}, present: "node-9", want: carved("10.0.0.12/30")},
		"not by policy":                     {rules: hold, taken: subnetsOf("10.0.0.0/29"), kept: []plan.Kept{others}, want: carved("10.0.0.12/30")},
		"not even as the last": {
			rules: hold, taken: subnetsOf("10.0.0.0/29", "10.0.0.12/30"), kept: []plan.Kept{others},
			want: plan.Assignment{Origin: plan.Carved, Exhausted: []address.Family{address.IPv4}}},
		"not by a node that has one": {
			rules: with(func(r *plan.SubnetRules) { r.Pools = dual }), joiner: plan.Joiner{Subnets: subnetsOf("10.0.0.0/30")}, taken: subnetsOf("10.0.0.0/30"), kept: []plan.Kept{others},
			want: carved("fd00::/64")},
		"a successor has it at once": {
			rules: late, joiner: successor, kept: []plan.Kept{others}, want: had(plan.Inherited, "node-9", []plan.Kept{others}, "10.0.0.8/30")},
		"whatever the policy": {
			rules: hold, joiner: successor, kept: []plan.Kept{others}, want: had(plan.Inherited, "node-9", []plan.Kept{others}, "10.0.0.8/30")},
		"and no other before it": {
			rules: inherit, joiner: successor, kept: []plan.Kept{lost("10.0.0.1", "node-0", since(time.Hour)), others},
			want: had(plan.Inherited, "node-9", []plan.Kept{others}, "10.0.0.8/30")},
		"but not while its predecessor is there": {
			rules: inherit, joiner: successor, taken: subnetsOf("10.0.0.0/29"), kept: []plan.Kept{others}, present: "node-9", want: carved("10.0.0.12/30")},
		"what is kept in a subnet that has a node is that node's": {
			rules: inherit, taken: subnetsOf("10.0.0.8/30"), kept: []plan.Kept{mine}, want: carved("10.0.0.12/30")},
		"what the node brings": {
			rules: brought, joiner: plan.Joiner{Own: subnetsOf("10.9.0.0/24", "fd00:9::/64")}, taken: subnetsOf("10.8.0.0/24"), kept: []plan.Kept{others, lost("10.9.0.7", "node-9")},
			want: plan.Assignment{Subnets: subnetsOf("10.9.0.0/24", "fd00:9::/64"), Kept: []plan.Kept{lost("10.9.0.7", "node-9")}, Origin: plan.Brought}},
		"what it brings in addition": {
			rules: brought, joiner: plan.Joiner{Own: subnetsOf("10.9.0.0/24", "fd00:9::/64"), Subnets: subnetsOf("10.9.0.0/24")}, taken: subnetsOf("10.9.0.0/24"),
			want: plan.Assignment{Subnets: subnetsOf("fd00:9::/64"), Origin: plan.Brought}},
		"what it brings is another's": {
			rules: brought, joiner: plan.Joiner{Own: subnetsOf("fd00:9::/64", "10.9.0.0/24")}, taken: subnetsOf("10.9.0.128/25"),
			want: plan.Assignment{Origin: plan.Brought, Overlap: subnet("10.9.0.0/24")}},
	} {
		t.Run(name, func(t *testing.T) {
			c.joiner.Name = "node-1"
			w := plan.World{Taken: c.taken, Kept: c.kept, Homed: nobody, Present: map[string]bool{c.present: c.present != ""}, Now: clock}
			if diff := cmp.Diff(c.want, plan.Assign(c.joiner, c.rules, w), byValue); diff != "" {
				t.Errorf("(-want +got): %s", diff)
			}
		})
	}
}

func nobody(string) bool { return false }

// BenchmarkAssign is the price of the subnet of one node, in a cluster with ten FixedIPs a node of
// which one in a hundred nodes is gone. It has to grow no faster than the cluster.
func BenchmarkAssign(b *testing.B) {
	for _, nodes := range []int{500, 5000} {
		rules := plan.SubnetRules{Pools: []address.ClusterPool{{CIDR: subnet("10.0.0.0/8"), MaskSize: 24}}, Policy: plan.Inherit}
		w := plan.World{Now: clock, Homed: func(n string) bool { return n != "gone" }}
		for i := range nodes {
			base := [4]byte{10, byte(i >> 8), byte(i), 0}
			node := "gone"
			if i%100 != 0 {
				node = "node"
				w.Taken = append(w.Taken, netip.PrefixFrom(netip.AddrFrom4(base), 24))
			}
			for j := range 10 {
				base[3] = byte(200 + j)
				w.Kept = append(w.Kept, lost(netip.AddrFrom4(base).String(), node))
			}
		}
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			for b.Loop() {
				if given := plan.Assign(plan.Joiner{Name: "node-1"}, rules, w); given.Origin != plan.Inherited || len(given.Kept) != nodes/10 {
					b.Fatalf("%s, %d kept", given.Origin, len(given.Kept))
				}
			}
		})
	}
}
