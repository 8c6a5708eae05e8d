// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/plan"
	"fixedip.io/fixedip/ipam/core/pool"
)

func TestOrphans(t *testing.T) {
	pools := []address.ClusterPool{{CIDR: subnet("10.0.0.0/24"), MaskSize: 28}, {CIDR: subnet("fd00::/48"), MaskSize: 64}}
	taken := subnetsOf("10.0.0.0/28", "10.0.0.40/29")
	v4, v6 := lost("10.0.0.17", "node-1"), lost("fd00::17", "node-1", since(2*time.Minute))
	away, second := lost("10.0.0.18", "node-2", forPod("mysql-1")), lost("10.0.0.20", "node-1", forPod("mysql-2"), untold)
	for name, c := range map[string]struct {
		kept []plan.Kept
		want []plan.Orphan
	}{
		"a subnet that has a node": {[]plan.Kept{lost("10.0.0.3", "node-2"), lost("10.0.0.44", "node-1")}, nil},
		"both families of a node go together, and count from the first": {[]plan.Kept{v4, v6},
			[]plan.Orphan{{Node: "node-1", Subnets: subnetsOf("10.0.0.16/28", "fd00::/64"), Kept: []plan.Kept{v4, v6}, Since: v6.Since}}},
		"what lives elsewhere was the node's too": {[]plan.Kept{second, away, v4},
			[]plan.Orphan{{Node: "node-1", Subnets: subnetsOf("10.0.0.16/28"), Kept: []plan.Kept{v4, away, second}, Since: v4.Since}}},
		"nothing but what lives elsewhere": {[]plan.Kept{away},
			[]plan.Orphan{{Subnets: subnetsOf("10.0.0.16/28"), Kept: []plan.Kept{away}, Since: away.Since}}},
		"of several nodes that are gone, the one of most": {[]plan.Kept{v4, lost("10.0.0.19", "node-0", forPod("mysql-3")), second},
			[]plan.Orphan{{Node: "node-1", Subnets: subnetsOf("10.0.0.16/28"), Kept: []plan.Kept{v4, lost("10.0.0.19", "node-0", forPod("mysql-3")), second}, Since: v4.Since}}},
		"each node for itself": {[]plan.Kept{lost("10.0.0.65", "node-3", untold), v4},
			[]plan.Orphan{
				{Node: "node-1", Subnets: subnetsOf("10.0.0.16/28"), Kept: []plan.Kept{v4}, Since: v4.Since},
				{Node: "node-3", Subnets: subnetsOf("10.0.0.64/28"), Kept: []plan.Kept{lost("10.0.0.65", "node-3", untold)}}}},
		"written by hand, for no node: the pod holds the families together": {[]plan.Kept{lost("10.0.0.33", "", forPod("a-0")), lost("fd00:0:0:1::1", "", forPod("a-0")), lost("10.0.0.65", "", forPod("a-1"))},
			[]plan.Orphan{
				{Subnets: subnetsOf("10.0.0.32/29", "fd00:0:0:1::/64"), Kept: []plan.Kept{lost("10.0.0.33", "", forPod("a-0")), lost("fd00:0:0:1::1", "", forPod("a-0"))}, Since: v4.Since},
				{Subnets: subnetsOf("10.0.0.64/28"), Kept: []plan.Kept{lost("10.0.0.65", "", forPod("a-1"))}, Since: v4.Since}}},
		"in no pool: nobody can have its subnet": {[]plan.Kept{lost("192.168.0.1", "node-1"), v4},
			[]plan.Orphan{
				{Node: "node-1", Subnets: subnetsOf("10.0.0.16/28"), Kept: []plan.Kept{v4}, Since: v4.Since},
				{Node: "node-1", Kept: []plan.Kept{lost("192.168.0.1", "node-1")}, Since: v4.Since}}},
	} {
		got := plan.Orphans(pools, address.Union(taken), c.kept, func(n string) bool { return n == "node-2" })
		if diff := cmp.Diff(c.want, got, byValue); diff != "" {
			t.Errorf("%s (-want +got): %s", name, diff)
		}
	}
}

func TestAdopter(t *testing.T) {
	gone := func(ago time.Duration, kept ...plan.Kept) plan.Orphan {
		return plan.Orphan{Node: "node-1", Subnets: subnetsOf("10.0.0.16/28"), Kept: kept, Since: clock.Add(-ago)}
	}
	waits, follows := lost("10.0.0.17", "node-1"), lost("10.0.0.18", "node-1", mayMove)
	at := func(d time.Duration) time.Time { return clock.Add(d) }
	old, newer := at(-time.Hour), at(-time.Second)
	for name, c := range map[string]struct {
		policy plan.Policy
		orphan plan.Orphan
		heirs  []plan.Heir
		want   string
		at     time.Time
	}{
		"nobody may": {plan.Hold, gone(time.Hour, waits), []plan.Heir{{Name: "a", Ready: true, Joined: newer}}, "", time.Time{}},
		"the successor, at once and whatever its state": {plan.Hold, gone(0, waits),
			[]plan.Heir{{Name: "a", Ready: true}, {Name: "b", SuccessorOf: "node-1"}, {Name: "c", SuccessorOf: "node-2"}}, "b", time.Time{}},
		"the successor before others": {plan.Inherit, gone(time.Hour, follows),
			[]plan.Heir{{Name: "a", Ready: true}, {Name: "b", SuccessorOf: "node-1", Subnets: 3}}, "b", time.Time{}},
		"who joined since":                     {plan.Inherit, gone(time.Minute, waits), []plan.Heir{{Name: "a", Ready: true, Joined: old}, {Name: "b", Ready: true, Joined: newer}}, "b", time.Time{}},
		"who joined a little before":           {plan.Inherit, gone(time.Minute, waits), []plan.Heir{{Name: "a", Ready: true, Joined: old}, {Name: "b", Ready: true, Joined: at(-90 * time.Second)}}, "b", time.Time{}},
		"who joined too long before":           {plan.Inherit, gone(time.Minute, waits), []plan.Heir{{Name: "b", Ready: true, Joined: at(-91 * time.Second)}}, "", time.Time{}},
		"nobody joined since":                  {plan.Inherit, gone(time.Minute, waits), []plan.Heir{{Name: "a", Ready: true, Joined: old}}, "", time.Time{}},
		"who joined since is not ready yet":    {plan.Inherit, gone(time.Minute, waits), []plan.Heir{{Name: "b", Joined: newer}}, "", time.Time{}},
		"who joined since has to wait":         {plan.Inherit, gone(20*time.Second, waits), []plan.Heir{{Name: "b", Ready: true, Joined: newer}}, "", at(10 * time.Second)},
		"an address may migrate":               {plan.Hold, gone(10*time.Second, waits, follows), []plan.Heir{{Name: "a", Ready: true, Joined: old}}, "a", time.Time{}},
		"it lets its node come back":           {plan.Hold, gone(9*time.Second, waits, follows), []plan.Heir{{Name: "a", Ready: true, Joined: old}}, "", at(time.Second)},
		"it does not go to where it can't run": {plan.Hold, gone(time.Hour, follows), []plan.Heir{{Name: "a", Joined: old}}, "", time.Time{}},
		"it has migrated already":              {plan.Hold, gone(time.Hour, lost("10.0.0.18", "node-2", mayMove)), []plan.Heir{{Name: "a", Ready: true}}, "", time.Time{}},
		"it says that it does not":             {plan.Hold, gone(time.Hour, lost("10.0.0.18", "node-1", func(k *plan.Kept) { k.Failover = v1alpha1.Wait })), []plan.Heir{{Name: "a", Ready: true}}, "", time.Time{}},
		"the fewest subnets, then the name":    {plan.Hold, gone(time.Hour, follows), []plan.Heir{{Name: "c", Ready: true, Subnets: 1}, {Name: "a", Ready: true, Subnets: 2}, {Name: "b", Ready: true, Subnets: 1}}, "b", time.Time{}},
		"before anybody has seen it":           {plan.Inherit, plan.Orphan{Node: "node-1", Subnets: subnetsOf("10.0.0.16/28"), Kept: []plan.Kept{follows}}, []plan.Heir{{Name: "a", Ready: true, Joined: newer}}, "", time.Time{}},
		"addresses without a subnet":           {plan.Inherit, plan.Orphan{Node: "node-1", Kept: []plan.Kept{follows}, Since: old}, []plan.Heir{{Name: "a", SuccessorOf: "node-1"}}, "", time.Time{}},
	} {
		heir, when := plan.SubnetRules{Policy: c.policy, Hold: 30 * time.Second}.Adopter(c.orphan, c.heirs, clock)
		if heir != c.want || !when.Equal(c.at) {
			t.Errorf("%s: %q, or at %v; want %q, or at %v", name, heir, when, c.want, c.at)
		}
	}
}

func TestGivenUp(t *testing.T) {
	its, away, byHand := lost("10.0.0.17", "node-1"), lost("10.0.0.18", "node-2"), lost("10.0.0.19", "")
	orphan := plan.Orphan{Node: "node-1", Subnets: subnetsOf("10.0.0.16/28"), Kept: []plan.Kept{its, away, byHand}, Since: clock.Add(-30 * time.Second)}
	nameless, unseen := orphan, orphan
	nameless.Node, unseen.Since = "", time.Time{}
	for name, c := range map[string]struct {
		policy plan.Policy
		hold   time.Duration
		orphan plan.Orphan
		want   []plan.Kept
		at     time.Time
	}{
		"what was on the node":           {plan.Free, 30 * time.Second, orphan, []plan.Kept{its}, time.Time{}},
		"not yet":                        {plan.Free, 40 * time.Second, orphan, nil, clock.Add(10 * time.Second)},
		"not before anybody has seen it": {plan.Free, 0, unseen, nil, time.Time{}},
		"not what never had a node":      {plan.Free, 0, nameless, nil, time.Time{}},
		"not where it is inherited":      {plan.Inherit, 0, orphan, nil, time.Time{}},
		"not where it is held":           {plan.Hold, 0, orphan, nil, time.Time{}},
	} {
		got, at := plan.SubnetRules{Policy: c.policy, Hold: c.hold}.GivenUp(c.orphan, clock)
		if diff := cmp.Diff(c.want, got, byValue); diff != "" || !at.Equal(c.at) {
			t.Errorf("%s: at %v, want %v; (-want +got): %s", name, at, c.at, diff)
		}
	}
}

func TestReserve(t *testing.T) {
	mine := pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql")
	kept := []plan.Kept{lost("10.0.0.17", "node-1"), lost("10.0.9.9", "node-1")}
	entries := func(e pool.Entry) map[netip.Addr]pool.Entry { return map[netip.Addr]pool.Entry{addr("10.0.0.17"): e} }
	for name, c := range map[string]struct {
		heir, other map[netip.Addr]pool.Entry
		want        map[netip.Addr]pool.Entry
		announced   []plan.Announced
	}{
		"nobody has it":                    {want: entries(mine)},
		"it lives elsewhere":               {other: entries(mine), want: entries(pool.MovedEntry("other", "db/mysql-0"))},
		"another pod has it elsewhere":     {other: entries(pool.OwnedEntry("db", "x-0", "StatefulSet", "x")), want: entries(pool.MovedEntry("other", "db/x-0"))},
		"anybody may have it elsewhere":    {other: entries(pool.Entry{}), want: entries(pool.MovedEntry("other", ""))},
		"it was about to move":             {other: entries(pool.MoveTargetEntry("db/mysql-0")), want: entries(mine), announced: []plan.Announced{{Node: "other", Addr: addr("10.0.0.17"), Entry: pool.MoveTargetEntry("db/mysql-0")}}},
		"it rests elsewhere":               {other: entries(pool.CooldownEntry("", clock)), want: entries(mine)},
		"the heir has it already":          {heir: entries(mine), want: map[netip.Addr]pool.Entry{}},
		"it was about to move to the heir": {heir: entries(pool.MoveTargetEntry("db/mysql-0")), want: entries(mine)},
	} {
		heir := pool.Node{Name: "heir", Entries: c.heir}
		others := []pool.Node{{Name: "heir", Entries: map[netip.Addr]pool.Entry{addr("10.0.0.17"): mine}}, {Name: "other", Entries: c.other}}
		got, announced := plan.Reserve(heir, subnetsOf("10.0.0.16/28"), kept, others)
		if diff := cmp.Diff(c.want, got, byValue) + cmp.Diff(c.announced, announced, byValue); diff != "" {
			t.Errorf("%s (-want +got): %s", name, diff)
		}
	}
}
