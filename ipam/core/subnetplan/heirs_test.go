// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnetplan_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/reservation"
	"fixedip.io/fixedip/ipam/core/subnetplan"
)

// lost returns the subnets of node-1, which was observed to be gone that long ago, with reserved addresses.
func lost(ago time.Duration, kept ...reservation.Address) subnetplan.OrphanedSubnets {
	s := of("10.0.0.16/28", "node-1", ago)
	return subnetplan.OrphanedSubnets{Node: "node-1", Subnets: []subnetplan.Subnet{s}, Reserved: kept, Since: s.OrphanedSince}
}

func with(o subnetplan.OrphanedSubnets, change func(*subnetplan.OrphanedSubnets)) subnetplan.OrphanedSubnets {
	change(&o)
	return o
}

var (
	dedicated  = corev1.Taint{Key: "dedicated", Value: "db", Effect: corev1.TaintEffectNoSchedule}
	zoneA      = v1alpha1.NodeConstraints{Zone: "a", Region: "r"}
	zoneB      = v1alpha1.NodeConstraints{Zone: "b", Region: "r"}
	poolOfA    = v1alpha1.NodeConstraints{Zone: "a", Region: "r", NodePool: map[string]string{"karpenter.sh/nodepool": "db"}}
	taintedOfA = v1alpha1.NodeConstraints{Zone: "a", Region: "r", Taints: []corev1.Taint{dedicated}}
)

func inZoneA(o *subnetplan.OrphanedSubnets) { o.Constraints = &zoneA }
func inPool(o *subnetplan.OrphanedSubnets)  { o.Constraints = &poolOfA }
func tainted(o *subnetplan.OrphanedSubnets) { o.Constraints = &taintedOfA }

// waiting adds one waiting pod for each element of nominated: the node to which the pod is nominated; empty if no node can
// run it. The pods need the label disk: ssd.
func waiting(nominated ...string) func(o *subnetplan.OrphanedSubnets) {
	return func(o *subnetplan.OrphanedSubnets) {
		for _, node := range nominated {
			pod := &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: map[string]string{"disk": "ssd"}}, Status: corev1.PodStatus{NominatedNodeName: node}}
			o.Waiting = append(o.Waiting, pod)
		}
	}
}

func TestJoinerInherits(t *testing.T) {
	inherit, hold := subnetplan.Rules{Policy: subnetplan.Inherit, Hold: 30 * time.Second}, subnetplan.Rules{Policy: subnetplan.Hold}
	mine := kept("10.0.0.17", "node-1")
	joins, successor := subnetplan.CandidateNode{Name: "node-5"}, subnetplan.CandidateNode{Name: "node-5", SuccessorOf: "node-1"}
	elder := with(lost(time.Hour, mine), func(o *subnetplan.OrphanedSubnets) { o.Node = "node-0" })
	for name, c := range map[string]struct {
		rules   subnetplan.Rules
		joiner  subnetplan.CandidateNode
		orphans []subnetplan.OrphanedSubnets
		// want is the node whose subnets the joiner inherits; empty if there is none.
		want string
	}{
		"the next node inherits":                      {inherit, joins, []subnetplan.OrphanedSubnets{lost(time.Minute, mine)}, "node-1"},
		"the one that waits longest":                  {inherit, joins, []subnetplan.OrphanedSubnets{elder, lost(time.Minute, mine)}, "node-0"},
		"not within the grace period":                 {inherit, joins, []subnetplan.OrphanedSubnets{lost(29*time.Second, mine)}, ""},
		"not before the loss is recorded":             {inherit, joins, []subnetplan.OrphanedSubnets{with(lost(time.Hour, mine), func(o *subnetplan.OrphanedSubnets) { o.Since = time.Time{} })}, ""},
		"not by policy":                               {hold, joins, []subnetplan.OrphanedSubnets{lost(time.Hour, mine)}, ""},
		"not what no FixedIP needs":                   {inherit, successor, []subnetplan.OrphanedSubnets{lost(time.Hour)}, ""},
		"not its own, which it is given anyway":       {inherit, subnetplan.CandidateNode{Name: "node-1"}, []subnetplan.OrphanedSubnets{lost(time.Hour, mine)}, ""},
		"not by a node that has subnets":              {inherit, subnetplan.CandidateNode{Name: "node-5", Subnets: 1}, []subnetplan.OrphanedSubnets{lost(time.Hour, mine)}, ""},
		"the successor, at once, whatever the policy": {hold, successor, []subnetplan.OrphanedSubnets{lost(0, mine)}, "node-1"},
		"the successor, beside other subnets":         {hold, subnetplan.CandidateNode{Name: "node-5", SuccessorOf: "node-1", Subnets: 1}, []subnetplan.OrphanedSubnets{lost(0, mine)}, "node-1"},
		"the successor, no other before it":           {inherit, successor, []subnetplan.OrphanedSubnets{elder, lost(0, mine)}, "node-1"},
		"the node that a person chose":                {hold, joins, []subnetplan.OrphanedSubnets{with(lost(0, mine), func(o *subnetplan.OrphanedSubnets) { o.Successor = "node-5" })}, "node-1"},
		"the rest of what it was given in part":       {hold, joins, []subnetplan.OrphanedSubnets{with(lost(0), func(o *subnetplan.OrphanedSubnets) { o.Candidate = "node-5" })}, "node-1"},
		"not the rest of what another was given":      {inherit, successor, []subnetplan.OrphanedSubnets{with(lost(time.Hour, mine), func(o *subnetplan.OrphanedSubnets) { o.Candidate = "node-6" })}, ""},
		"not in another zone":                         {inherit, subnetplan.CandidateNode{Name: "node-5", Constraints: zoneB}, []subnetplan.OrphanedSubnets{with(lost(time.Hour, mine), inZoneA)}, ""},
		"in the same zone":                            {inherit, subnetplan.CandidateNode{Name: "node-5", Constraints: zoneA}, []subnetplan.OrphanedSubnets{with(lost(time.Hour, mine), inZoneA)}, "node-1"},
		"not with a taint that the pods may not bear": {inherit, subnetplan.CandidateNode{Name: "node-5", Constraints: taintedOfA}, []subnetplan.OrphanedSubnets{with(lost(time.Hour, mine), inZoneA)}, ""},
		"not where no pod that waits can run":         {inherit, subnetplan.CandidateNode{Name: "node-5", Labels: map[string]string{"disk": "hdd"}}, []subnetplan.OrphanedSubnets{with(lost(time.Hour, mine), waiting(""))}, ""},
		"where a pod that waits can run":              {inherit, subnetplan.CandidateNode{Name: "node-5", Labels: map[string]string{"disk": "ssd"}}, []subnetplan.OrphanedSubnets{with(lost(time.Hour, mine), waiting(""))}, "node-1"},
		"not with a taint that no pod bears":          {inherit, subnetplan.CandidateNode{Name: "node-5", Labels: map[string]string{"disk": "ssd"}, Constraints: taintedOfA}, []subnetplan.OrphanedSubnets{with(with(lost(time.Hour, mine), waiting("")), tainted)}, ""},
		"with the taint that its node had":            {inherit, subnetplan.CandidateNode{Name: "node-5", Constraints: taintedOfA}, []subnetplan.OrphanedSubnets{with(lost(time.Hour, mine), tainted)}, "node-1"},
		"a successor in another zone was chosen":      {hold, subnetplan.CandidateNode{Name: "node-5", SuccessorOf: "node-1", Constraints: zoneB}, []subnetplan.OrphanedSubnets{with(lost(0, mine), inZoneA)}, "node-1"},
	} {
		o, ok := c.rules.JoinerInherits(c.joiner, c.orphans, clock)
		if o.Node != c.want || ok != (c.want != "") {
			t.Errorf("%s: %q, want %q", name, o.Node, c.want)
		}
	}
}

func TestPickExistingNode(t *testing.T) {
	waits, follows := kept("10.0.0.17", "node-1"), kept("10.0.0.18", "node-1", mayMove)
	at := func(d time.Duration) time.Time { return clock.Add(d) }
	old, newer := at(-time.Hour), at(-time.Second)
	ready := func(name string, joined time.Time, c v1alpha1.NodeConstraints) subnetplan.CandidateNode {
		return subnetplan.CandidateNode{Name: name, Ready: true, Joined: joined, Constraints: c}
	}
	none := v1alpha1.NodeConstraints{}
	unrecorded := with(lost(0, follows), func(o *subnetplan.OrphanedSubnets) { o.Since = time.Time{} })
	homeless := with(lost(time.Hour, follows), func(o *subnetplan.OrphanedSubnets) { o.Subnets = nil })
	for name, c := range map[string]struct {
		policy subnetplan.OrphanPolicy
		orphan subnetplan.OrphanedSubnets
		heirs  []subnetplan.CandidateNode
		want   string
		at     time.Time
	}{
		"no node may": {subnetplan.Hold, lost(time.Hour, waits), []subnetplan.CandidateNode{ready("a", newer, none)}, "", time.Time{}},
		"the successor, at once and whatever its state": {subnetplan.Hold, lost(0, waits),
			[]subnetplan.CandidateNode{{Name: "a", Ready: true}, {Name: "b", SuccessorOf: "node-1"}, {Name: "c", SuccessorOf: "node-2"}}, "b", time.Time{}},
		"the successor before others": {subnetplan.Inherit, lost(time.Hour, follows),
			[]subnetplan.CandidateNode{{Name: "a", Ready: true}, {Name: "b", SuccessorOf: "node-1", Subnets: 3}}, "b", time.Time{}},
		"the node that a person chose":             {subnetplan.Hold, with(lost(0, waits), func(o *subnetplan.OrphanedSubnets) { o.Successor = "a" }), []subnetplan.CandidateNode{{Name: "a"}, ready("b", newer, none)}, "a", time.Time{}},
		"the node that has a part":                 {subnetplan.Hold, with(lost(0), func(o *subnetplan.OrphanedSubnets) { o.Candidate = "a" }), []subnetplan.CandidateNode{{Name: "a"}, ready("b", newer, none)}, "a", time.Time{}},
		"a node that joined since":                 {subnetplan.Inherit, lost(time.Minute, waits), []subnetplan.CandidateNode{ready("a", old, none), ready("b", newer, none)}, "b", time.Time{}},
		"a node that joined a little before":       {subnetplan.Inherit, lost(time.Minute, waits), []subnetplan.CandidateNode{ready("a", old, none), ready("b", at(-90*time.Second), none)}, "b", time.Time{}},
		"a node that joined long before":           {subnetplan.Inherit, lost(time.Minute, waits), []subnetplan.CandidateNode{ready("a", old, none)}, "", time.Time{}},
		"the node that pods are nominated to":      {subnetplan.Inherit, with(lost(time.Minute, waits), waiting("a")), []subnetplan.CandidateNode{ready("a", old, none), ready("b", newer, none)}, "a", time.Time{}},
		"most pods are nominated to it":            {subnetplan.Inherit, with(lost(time.Minute, waits), waiting("a", "b", "b")), []subnetplan.CandidateNode{ready("a", newer, none), ready("b", old, none)}, "b", time.Time{}},
		"in another zone, as pods can run there":   {subnetplan.Inherit, with(with(lost(time.Minute, waits), waiting("a")), inZoneA), []subnetplan.CandidateNode{ready("a", old, zoneB), ready("b", newer, zoneA)}, "a", time.Time{}},
		"nominated, within the grace period":       {subnetplan.Inherit, with(lost(20*time.Second, waits), waiting("a")), []subnetplan.CandidateNode{ready("a", old, none)}, "", at(10 * time.Second)},
		"nominated, and not ready any more":        {subnetplan.Inherit, with(lost(time.Minute, waits), waiting("a")), []subnetplan.CandidateNode{{Name: "a", Joined: old}}, "", time.Time{}},
		"nominated, and another one was chosen":    {subnetplan.Inherit, with(lost(time.Minute, waits), waiting("a")), []subnetplan.CandidateNode{ready("a", old, none), {Name: "b", SuccessorOf: "node-1"}}, "b", time.Time{}},
		"nominated, and the policy is Hold":        {subnetplan.Hold, with(lost(time.Minute, waits), waiting("a")), []subnetplan.CandidateNode{ready("a", old, none)}, "", time.Time{}},
		"no node can run the pods that wait":       {subnetplan.Inherit, with(lost(time.Minute, waits), waiting("")), []subnetplan.CandidateNode{ready("a", old, none)}, "", time.Time{}},
		"a pod waits that may migrate":             {subnetplan.Inherit, with(lost(time.Minute, follows), waiting("")), []subnetplan.CandidateNode{ready("a", old, none)}, "a", time.Time{}},
		"the node is not ready yet":                {subnetplan.Inherit, lost(time.Minute, waits), []subnetplan.CandidateNode{{Name: "b", Joined: newer}}, "", time.Time{}},
		"the node has to wait":                     {subnetplan.Inherit, lost(20*time.Second, waits), []subnetplan.CandidateNode{ready("b", newer, none)}, "", at(10 * time.Second)},
		"an address may migrate":                   {subnetplan.Hold, lost(10*time.Second, waits, follows), []subnetplan.CandidateNode{ready("a", old, none)}, "a", time.Time{}},
		"it lets its node come back":               {subnetplan.Hold, lost(9*time.Second, waits, follows), []subnetplan.CandidateNode{ready("a", old, none)}, "", at(time.Second)},
		"it does not go to where it can't run":     {subnetplan.Hold, lost(time.Hour, follows), []subnetplan.CandidateNode{{Name: "a", Joined: old}}, "", time.Time{}},
		"it has migrated already":                  {subnetplan.Hold, lost(time.Hour, kept("10.0.0.18", "node-2", mayMove)), []subnetplan.CandidateNode{ready("a", old, none)}, "", time.Time{}},
		"it says that it does not":                 {subnetplan.Hold, lost(time.Hour, kept("10.0.0.18", "node-1", func(k *reservation.Address) { k.Failover = v1alpha1.Wait })), []subnetplan.CandidateNode{ready("a", old, none)}, "", time.Time{}},
		"the fewest subnets, then the name":        {subnetplan.Hold, lost(time.Hour, follows), []subnetplan.CandidateNode{{Name: "c", Ready: true, Subnets: 1}, {Name: "a", Ready: true, Subnets: 2}, {Name: "b", Ready: true, Subnets: 1}}, "b", time.Time{}},
		"before the loss is recorded":              {subnetplan.Inherit, unrecorded, []subnetplan.CandidateNode{ready("a", newer, none)}, "", time.Time{}},
		"addresses without a subnet":               {subnetplan.Inherit, homeless, []subnetplan.CandidateNode{{Name: "a", SuccessorOf: "node-1"}}, "", time.Time{}},
		"nothing is reserved there":                {subnetplan.Inherit, lost(time.Hour), []subnetplan.CandidateNode{ready("a", newer, none)}, "", time.Time{}},
		"a node in the same zone":                  {subnetplan.Inherit, with(lost(time.Hour, waits), inZoneA), []subnetplan.CandidateNode{ready("a", newer, zoneB), ready("b", newer, zoneA)}, "b", time.Time{}},
		"no node in the same zone":                 {subnetplan.Inherit, with(lost(time.Hour, waits), inZoneA), []subnetplan.CandidateNode{ready("a", newer, zoneB)}, "", time.Time{}},
		"a node whose taint the pods may not bear": {subnetplan.Hold, with(lost(time.Hour, follows), inZoneA), []subnetplan.CandidateNode{ready("a", old, taintedOfA)}, "", time.Time{}},
		"a node of the same node pool":             {subnetplan.Hold, with(lost(time.Hour, follows), inPool), []subnetplan.CandidateNode{ready("a", old, zoneA), ready("b", old, poolOfA)}, "b", time.Time{}},
	} {
		for i := range c.heirs {
			c.heirs[i].Subnets++
		}
		heir, when := subnetplan.Rules{Policy: c.policy, Hold: 30 * time.Second}.PickExistingNode(c.orphan, c.heirs, clock)
		if heir != c.want || !when.Equal(c.at) {
			t.Errorf("%s: %q, or at %v; want %q, or at %v", name, heir, when, c.want, c.at)
		}
	}
}

func TestGivenUp(t *testing.T) {
	its, away, byHand := kept("10.0.0.17", "node-1"), kept("10.0.0.18", "node-2"), kept("10.0.0.19", "")
	orphan := lost(30*time.Second, its, away, byHand)
	nameless, unseen := orphan, orphan
	nameless.Node, unseen.Since = "", time.Time{}
	for name, c := range map[string]struct {
		policy subnetplan.OrphanPolicy
		hold   time.Duration
		orphan subnetplan.OrphanedSubnets
		want   []reservation.Address
		at     time.Time
	}{
		"what was on the node":            {subnetplan.Free, 30 * time.Second, orphan, []reservation.Address{its}, time.Time{}},
		"not yet":                         {subnetplan.Free, 40 * time.Second, orphan, nil, clock.Add(10 * time.Second)},
		"not before the loss is recorded": {subnetplan.Free, 0, unseen, nil, time.Time{}},
		"not what never had a node":       {subnetplan.Free, 0, nameless, nil, time.Time{}},
		"not by policy Inherit":           {subnetplan.Inherit, 0, orphan, nil, time.Time{}},
		"not by policy Hold":              {subnetplan.Hold, 0, orphan, nil, time.Time{}},
	} {
		got, at := subnetplan.Rules{Policy: c.policy, Hold: c.hold}.ExpiredReservations(c.orphan, clock)
		if diff := cmp.Diff(c.want, got, byValue); diff != "" || !at.Equal(c.at) {
			t.Errorf("%s: at %v, want %v; (-want +got): %s", name, at, c.at, diff)
		}
	}
}

func TestReleasable(t *testing.T) {
	for name, c := range map[string]struct {
		orphan subnetplan.OrphanedSubnets
		want   bool
		at     time.Time
	}{
		"after the grace period":          {lost(30 * time.Second), true, time.Time{}},
		"within the grace period":         {lost(20 * time.Second), false, clock.Add(10 * time.Second)},
		"a FixedIP reserves an address":   {lost(time.Hour, kept("10.0.0.17", "node-1")), false, time.Time{}},
		"the loss is not recorded yet":    {lost(0), false, time.Time{}},
		"an heir has the rest of it":      {with(lost(time.Hour), func(o *subnetplan.OrphanedSubnets) { o.Candidate = "node-2" }), false, time.Time{}},
		"it never had a node":             {with(lost(0), func(o *subnetplan.OrphanedSubnets) { o.Node = "" }), true, time.Time{}},
		"an address without a NodeSubnet": {subnetplan.OrphanedSubnets{Node: "node-1"}, false, time.Time{}},
	} {
		got, at := subnetplan.Rules{Hold: 30 * time.Second}.Releasable(c.orphan, clock)
		if got != c.want || !at.Equal(c.at) {
			t.Errorf("%s: %t, or at %v; want %t, or at %v", name, got, at, c.want, c.at)
		}
	}
}

func TestLacking(t *testing.T) {
	pools := []address.ClusterPool{{CIDR: cidr("fd00::/62"), MaskSize: 64}, {CIDR: cidr("10.0.0.0/28"), MaskSize: 30}}
	for name, c := range map[string]struct {
		pools []address.ClusterPool
		has   []string
		want  []address.Family
	}{
		"a new node":                    {pools, nil, []address.Family{address.IPv4, address.IPv6}},
		"a node with one family":        {pools, []string{"10.9.0.0/24"}, []address.Family{address.IPv6}},
		"a node with both":              {pools, []string{"10.9.0.0/24", "fd00::/64"}, nil},
		"a family without a pool":       {pools[1:], []string{"10.9.0.0/24"}, nil},
		"no pools: each brings its own": {nil, nil, nil},
	} {
		if diff := cmp.Diff(c.want, subnetplan.Lacking(c.pools, cidrsOf(c.has...))); diff != "" {
			t.Errorf("%s (-want +got): %s", name, diff)
		}
	}
}
