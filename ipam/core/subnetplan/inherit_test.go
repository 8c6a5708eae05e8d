// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnetplan_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reservation"
	"fixedip.io/fixedip/ipam/core/subnetplan"
	"fixedip.io/fixedip/test/gen"
)

// lost returns the orphaned subnet of node-1 with reserved addresses. ago is the time since node-1 was observed to be gone.
func lost(ago time.Duration, reserved ...reservation.Address) subnetplan.OrphanedSubnets {
	s := of("10.0.0.16/28", "node-1", ago)
	return subnetplan.OrphanedSubnets{Node: "node-1", Subnets: []subnetplan.Subnet{s}, Reserved: reserved, Since: s.OrphanedSince}
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

// waiting adds one waiting pod for each element of nominated, the node to which the pod is nominated; empty if it is not
// nominated. The pods require the node label disk: ssd.
func waiting(nominated ...string) func(o *subnetplan.OrphanedSubnets) {
	return func(o *subnetplan.OrphanedSubnets) {
		for _, node := range nominated {
			pod := &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: map[string]string{"disk": "ssd"}}, Status: corev1.PodStatus{NominatedNodeName: node}}
			o.Waiting = append(o.Waiting, pod)
		}
	}
}

// volumeOn adds a volume of a waiting pod. Only nodes whose label has the value can use the volume.
func volumeOn(label, value string) func(o *subnetplan.OrphanedSubnets) {
	in := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: label, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}}}
	affinity := &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{in}}}
	return func(o *subnetplan.OrphanedSubnets) {
		o.Volumes = append(o.Volumes, subnetplan.Volume{Pod: "default/mysql-0", Claim: label + " " + value, Volume: &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{NodeAffinity: affinity}}})
	}
}

// TestLimitingVolumes checks that a volume that no node can use limits the choice of the node that inherits only if it is in
// a zone or region, in which a node may join.
func TestLimitingVolumes(t *testing.T) {
	node := *gen.Node("node-2", func(n *corev1.Node) {
		n.Labels = map[string]string{corev1.LabelHostname: "node-2", corev1.LabelTopologyZone: "a"}
	})
	for name, c := range map[string]struct {
		label, value string
		limits       bool
	}{
		"the zone has a node":                   {corev1.LabelTopologyZone, "a", true},
		"the zone has no node":                  {corev1.LabelTopologyZone, "b", true},
		"the zone of a storage driver":          {"topology.gke.io/zone", "b", true},
		"the region has no node":                {corev1.LabelTopologyRegion, "r", true},
		"local volume of an existing node":      {corev1.LabelHostname, "node-2", true},
		"local volume of the node that is gone": {corev1.LabelHostname, "node-1", false},
		"label of a driver for single nodes":    {"topology.topolvm.io/node", "node-1", false},
	} {
		var o subnetplan.OrphanedSubnets
		volumeOn(c.label, c.value)(&o)
		if got := len(subnetplan.LimitingVolumes(o.Volumes, []corev1.Node{node})) == 1; got != c.limits {
			t.Errorf("%s: limits %t, want %t", name, got, c.limits)
		}
	}
	anywhere := []subnetplan.Volume{{Volume: &corev1.PersistentVolume{}}}
	if got := subnetplan.LimitingVolumes(anywhere, nil); got != nil {
		t.Errorf("a volume without node affinity: got limiting volumes %+v, want none", got)
	}
}

// TestPinned checks that only the waiting pods with the failover policy Wait need a node that can use their volumes.
func TestPinned(t *testing.T) {
	policies := map[string]v1alpha1.Failover{"waits": v1alpha1.Wait, "moves": v1alpha1.Migrate, "renews": v1alpha1.Reassign, "default": ""}
	for name, c := range map[string]struct {
		failover v1alpha1.Failover
		want     []string
	}{
		"by default, pods wait": {v1alpha1.Wait, []string{"default", "waits"}},
		"by default, pods move": {v1alpha1.Migrate, []string{"waits"}},
	} {
		var o subnetplan.OrphanedSubnets
		for pod, policy := range policies {
			o.Waiting = append(o.Waiting, gen.Pod(pod))
			o.Reserved = append(o.Reserved, reservation.Address{Failover: policy, Entry: pool.ForOwner(pool.OwnerKey(gen.Namespace, pod))})
		}
		var got []string
		for _, pod := range (subnetplan.Rules{Failover: c.failover}).Pinned(o) {
			got = append(got, pod.Name)
		}
		slices.Sort(got)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: pods (-want +got):\n%s", name, diff)
		}
	}
}

func TestOrphanForNewNode(t *testing.T) {
	inherit, hold := subnetplan.Rules{Policy: subnetplan.Inherit, GracePeriod: 30 * time.Second}, subnetplan.Rules{Policy: subnetplan.Hold}
	mine := reservedAddress("10.0.0.17", "node-1")
	newNode, successor := subnetplan.CandidateNode{Name: "node-5"}, subnetplan.CandidateNode{Name: "node-5", ReplacesNode: "node-1"}
	older := with(lost(time.Hour, mine), func(o *subnetplan.OrphanedSubnets) { o.Node = "node-0" })
	for name, c := range map[string]struct {
		rules   subnetplan.Rules
		node    subnetplan.CandidateNode
		orphans []subnetplan.OrphanedSubnets
		// want is the node whose subnets the node inherits; empty if there is none.
		want string
	}{
		"a new node inherits":                                {inherit, newNode, []subnetplan.OrphanedSubnets{lost(time.Minute, mine)}, "node-1"},
		"the orphan that waits longest is inherited first":   {inherit, newNode, []subnetplan.OrphanedSubnets{older, lost(time.Minute, mine)}, "node-0"},
		"within the grace period":                            {inherit, newNode, []subnetplan.OrphanedSubnets{lost(29*time.Second, mine)}, ""},
		"the loss is not recorded":                           {inherit, newNode, []subnetplan.OrphanedSubnets{with(lost(time.Hour, mine), func(o *subnetplan.OrphanedSubnets) { o.Since = time.Time{} })}, ""},
		"policy Hold":                                        {hold, newNode, []subnetplan.OrphanedSubnets{lost(time.Hour, mine)}, ""},
		"no FixedIP reserves an address":                     {inherit, successor, []subnetplan.OrphanedSubnets{lost(time.Hour)}, ""},
		"the node itself joins again":                        {inherit, subnetplan.CandidateNode{Name: "node-1"}, []subnetplan.OrphanedSubnets{lost(time.Hour, mine)}, ""},
		"the node has other subnets":                         {inherit, subnetplan.CandidateNode{Name: "node-5", Subnets: 1}, []subnetplan.OrphanedSubnets{lost(time.Hour, mine)}, ""},
		"the successor inherits at once, policy Hold":        {hold, successor, []subnetplan.OrphanedSubnets{lost(0, mine)}, "node-1"},
		"the successor has other subnets":                    {hold, subnetplan.CandidateNode{Name: "node-5", ReplacesNode: "node-1", Subnets: 1}, []subnetplan.OrphanedSubnets{lost(0, mine)}, "node-1"},
		"the successor prefers its orphan to an older one":   {inherit, successor, []subnetplan.OrphanedSubnets{older, lost(0, mine)}, "node-1"},
		"NodeSubnet.spec.successor names the node":           {hold, newNode, []subnetplan.OrphanedSubnets{with(lost(0, mine), func(o *subnetplan.OrphanedSubnets) { o.Successor = "node-5" })}, "node-1"},
		"the node has inherited one of the subnets":          {hold, newNode, []subnetplan.OrphanedSubnets{with(lost(0, mine), func(o *subnetplan.OrphanedSubnets) { o.Candidate = "node-5" })}, "node-1"},
		"the node has inherited all subnets that are needed": {hold, newNode, []subnetplan.OrphanedSubnets{with(lost(0), func(o *subnetplan.OrphanedSubnets) { o.Candidate = "node-5" })}, ""},
		"another node has inherited one of the subnets":      {inherit, successor, []subnetplan.OrphanedSubnets{with(lost(time.Hour, mine), func(o *subnetplan.OrphanedSubnets) { o.Candidate = "node-6" })}, ""},
		"another zone":                                       {inherit, subnetplan.CandidateNode{Name: "node-5", Constraints: zoneB}, []subnetplan.OrphanedSubnets{with(lost(time.Hour, mine), inZoneA)}, ""},
		"same zone":                                          {inherit, subnetplan.CandidateNode{Name: "node-5", Constraints: zoneA}, []subnetplan.OrphanedSubnets{with(lost(time.Hour, mine), inZoneA)}, "node-1"},
		"a taint that the pods may not tolerate":             {inherit, subnetplan.CandidateNode{Name: "node-5", Constraints: taintedOfA}, []subnetplan.OrphanedSubnets{with(lost(time.Hour, mine), inZoneA)}, ""},
		"no waiting pod can run on the node":                 {inherit, subnetplan.CandidateNode{Name: "node-5", Labels: map[string]string{"disk": "hdd"}}, []subnetplan.OrphanedSubnets{with(lost(time.Hour, mine), waiting(""))}, ""},
		"a waiting pod can run on the node":                  {inherit, subnetplan.CandidateNode{Name: "node-5", Labels: map[string]string{"disk": "ssd"}}, []subnetplan.OrphanedSubnets{with(lost(time.Hour, mine), waiting(""))}, "node-1"},
		"a taint that no waiting pod tolerates":              {inherit, subnetplan.CandidateNode{Name: "node-5", Labels: map[string]string{"disk": "ssd"}, Constraints: taintedOfA}, []subnetplan.OrphanedSubnets{with(with(lost(time.Hour, mine), waiting("")), tainted)}, ""},
		"the taint of the previous node":                     {inherit, subnetplan.CandidateNode{Name: "node-5", Constraints: taintedOfA}, []subnetplan.OrphanedSubnets{with(lost(time.Hour, mine), tainted)}, "node-1"},
		"a volume that the node cannot use":                  {inherit, subnetplan.CandidateNode{Name: "node-5", Labels: map[string]string{"disk": "ssd", "zone": "b"}}, []subnetplan.OrphanedSubnets{with(with(lost(time.Hour, mine), waiting("")), volumeOn("zone", "a"))}, ""},
		"a volume that the node can use":                     {inherit, subnetplan.CandidateNode{Name: "node-5", Labels: map[string]string{"disk": "ssd", "zone": "a"}}, []subnetplan.OrphanedSubnets{with(with(lost(time.Hour, mine), waiting("")), volumeOn("zone", "a"))}, "node-1"},
		"the successor cannot use a volume":                  {hold, successor, []subnetplan.OrphanedSubnets{with(lost(0, mine), volumeOn("zone", "a"))}, "node-1"},
		"the successor is in another zone":                   {hold, subnetplan.CandidateNode{Name: "node-5", ReplacesNode: "node-1", Constraints: zoneB}, []subnetplan.OrphanedSubnets{with(lost(0, mine), inZoneA)}, "node-1"},
	} {
		o, ok := c.rules.OrphanForNewNode(c.node, c.orphans, clock)
		if o.Node != c.want || ok != (c.want != "") {
			t.Errorf("%s: the node inherits the subnets of %q, want those of %q", name, o.Node, c.want)
		}
	}
}

// TestNeeded checks which subnets of a lost node another node inherits.
func TestNeeded(t *testing.T) {
	subnet := func(cidr string) subnetplan.Subnet { return subnetplan.Subnet{CIDR: netip.MustParsePrefix(cidr)} }
	subnets := []subnetplan.Subnet{subnet("10.0.0.0/28"), subnet("10.0.0.16/28"), subnet("10.0.0.32/28"), subnet("fd00::/120"), subnet("fd00::100/120")}
	for name, c := range map[string]struct {
		reserved []string
		has      int
		want     []string
	}{
		"a node with subnets":                                {[]string{"10.0.0.17"}, 1, []string{"10.0.0.16/28"}},
		"a node with subnets, addresses of both families":    {[]string{"10.0.0.17", "10.0.0.18", "fd00::101"}, 1, []string{"10.0.0.16/28", "fd00::100/120"}},
		"a node with subnets, two subnets of one family":     {[]string{"10.0.0.17", "10.0.0.33"}, 2, []string{"10.0.0.16/28", "10.0.0.32/28"}},
		"a node without subnets":                             {[]string{"10.0.0.17"}, 0, []string{"10.0.0.16/28", "fd00::/120"}},
		"a node without subnets, addresses of both families": {[]string{"10.0.0.17", "fd00::101"}, 0, []string{"10.0.0.16/28", "fd00::100/120"}},
	} {
		o := subnetplan.OrphanedSubnets{Node: "node-1", Subnets: subnets}
		for _, ip := range c.reserved {
			o.Reserved = append(o.Reserved, reservedAddress(ip, "node-1"))
		}
		got := []string{}
		for _, s := range o.Needed(subnetplan.CandidateNode{Name: "node-2", Subnets: c.has}) {
			got = append(got, s.CIDR.String())
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: subnets (-want +got):\n%s", name, diff)
		}
	}
}

func TestPickExistingNode(t *testing.T) {
	waits, follows := reservedAddress("10.0.0.17", "node-1"), reservedAddress("10.0.0.18", "node-1", mayMove)
	at := func(d time.Duration) time.Time { return clock.Add(d) }
	old, newer := at(-time.Hour), at(-time.Second)
	ready := func(name string, joined time.Time, c v1alpha1.NodeConstraints) subnetplan.CandidateNode {
		return subnetplan.CandidateNode{Name: name, Ready: true, Joined: joined, Constraints: c}
	}
	none := v1alpha1.NodeConstraints{}
	unrecorded := with(lost(0, follows), func(o *subnetplan.OrphanedSubnets) { o.Since = time.Time{} })
	withoutSubnet := with(lost(time.Hour, follows), func(o *subnetplan.OrphanedSubnets) { o.Subnets = nil })
	for name, c := range map[string]struct {
		policy     subnetplan.OrphanPolicy
		orphan     subnetplan.OrphanedSubnets
		candidates []subnetplan.CandidateNode
		want       string
		at         time.Time
	}{
		"policy Hold": {subnetplan.Hold, lost(time.Hour, waits), []subnetplan.CandidateNode{ready("a", newer, none)}, "", time.Time{}},
		"the successor inherits at once and need not be ready": {subnetplan.Hold, lost(0, waits),
			[]subnetplan.CandidateNode{{Name: "a", Ready: true}, {Name: "b", ReplacesNode: "node-1"}, {Name: "c", ReplacesNode: "node-2"}}, "b", time.Time{}},
		"the successor is preferred although it has more subnets": {subnetplan.Inherit, lost(time.Hour, follows),
			[]subnetplan.CandidateNode{{Name: "a", Ready: true}, {Name: "b", ReplacesNode: "node-1", Subnets: 3}}, "b", time.Time{}},
		"NodeSubnet.spec.successor names the node":                 {subnetplan.Hold, with(lost(0, waits), func(o *subnetplan.OrphanedSubnets) { o.Successor = "a" }), []subnetplan.CandidateNode{{Name: "a"}, ready("b", newer, none)}, "a", time.Time{}},
		"the node has inherited one of the subnets":                {subnetplan.Hold, with(lost(0, reservedAddress("10.0.0.17", "node-1")), func(o *subnetplan.OrphanedSubnets) { o.Candidate = "a" }), []subnetplan.CandidateNode{{Name: "a"}, ready("b", newer, none)}, "a", time.Time{}},
		"a node joined after the loss":                             {subnetplan.Inherit, lost(time.Minute, waits), []subnetplan.CandidateNode{ready("a", old, none), ready("b", newer, none)}, "b", time.Time{}},
		"a node joined shortly before the loss":                    {subnetplan.Inherit, lost(time.Minute, waits), []subnetplan.CandidateNode{ready("a", old, none), ready("b", at(-90*time.Second), none)}, "b", time.Time{}},
		"a node joined long before the loss":                       {subnetplan.Inherit, lost(time.Minute, waits), []subnetplan.CandidateNode{ready("a", old, none)}, "", time.Time{}},
		"nominated":                                                {subnetplan.Inherit, with(lost(time.Minute, waits), waiting("a")), []subnetplan.CandidateNode{ready("a", old, none), ready("b", newer, none)}, "a", time.Time{}},
		"two nodes nominated, most pods to one of them":            {subnetplan.Inherit, with(lost(time.Minute, waits), waiting("a", "b", "b")), []subnetplan.CandidateNode{ready("a", newer, none), ready("b", old, none)}, "b", time.Time{}},
		"nominated, the node is in another zone":                   {subnetplan.Inherit, with(with(lost(time.Minute, waits), waiting("a")), inZoneA), []subnetplan.CandidateNode{ready("a", old, zoneB), ready("b", newer, zoneA)}, "a", time.Time{}},
		"nominated, a waiting pod has a volume in another zone":    {subnetplan.Inherit, with(with(lost(time.Minute, waits), waiting("a", "")), volumeOn("zone", "a")), []subnetplan.CandidateNode{ready("a", old, none)}, "", time.Time{}},
		"nominated, within the grace period":                       {subnetplan.Inherit, with(lost(20*time.Second, waits), waiting("a")), []subnetplan.CandidateNode{ready("a", old, none)}, "", at(10 * time.Second)},
		"nominated, the node is not ready":                         {subnetplan.Inherit, with(lost(time.Minute, waits), waiting("a")), []subnetplan.CandidateNode{{Name: "a", Joined: old}}, "", time.Time{}},
		"nominated, another node is the successor":                 {subnetplan.Inherit, with(lost(time.Minute, waits), waiting("a")), []subnetplan.CandidateNode{ready("a", old, none), {Name: "b", ReplacesNode: "node-1"}}, "b", time.Time{}},
		"nominated, policy Hold":                                   {subnetplan.Hold, with(lost(time.Minute, waits), waiting("a")), []subnetplan.CandidateNode{ready("a", old, none)}, "", time.Time{}},
		"no node can run the waiting pods":                         {subnetplan.Inherit, with(lost(time.Minute, waits), waiting("")), []subnetplan.CandidateNode{ready("a", old, none)}, "", time.Time{}},
		"a waiting pod may migrate":                                {subnetplan.Inherit, with(lost(time.Minute, follows), waiting("")), []subnetplan.CandidateNode{ready("a", old, none)}, "a", time.Time{}},
		"the node is not ready":                                    {subnetplan.Inherit, lost(time.Minute, waits), []subnetplan.CandidateNode{{Name: "b", Joined: newer}}, "", time.Time{}},
		"within the grace period":                                  {subnetplan.Inherit, lost(20*time.Second, waits), []subnetplan.CandidateNode{ready("b", newer, none)}, "", at(10 * time.Second)},
		"an address may migrate, policy Hold":                      {subnetplan.Hold, lost(10*time.Second, waits, follows), []subnetplan.CandidateNode{ready("a", old, none)}, "a", time.Time{}},
		"an address may migrate, within the shorter grace period":  {subnetplan.Hold, lost(9*time.Second, waits, follows), []subnetplan.CandidateNode{ready("a", old, none)}, "", at(time.Second)},
		"an address may migrate, the node is not ready":            {subnetplan.Hold, lost(time.Hour, follows), []subnetplan.CandidateNode{{Name: "a", Joined: old}}, "", time.Time{}},
		"the address has migrated already":                         {subnetplan.Hold, lost(time.Hour, reservedAddress("10.0.0.18", "node-2", mayMove)), []subnetplan.CandidateNode{ready("a", old, none)}, "", time.Time{}},
		"the failover policy of the address is Wait":               {subnetplan.Hold, lost(time.Hour, reservedAddress("10.0.0.18", "node-1", func(k *reservation.Address) { k.Failover = v1alpha1.Wait })), []subnetplan.CandidateNode{ready("a", old, none)}, "", time.Time{}},
		"the node with the fewest subnets, then the first by name": {subnetplan.Hold, lost(time.Hour, follows), []subnetplan.CandidateNode{{Name: "c", Ready: true, Subnets: 1}, {Name: "a", Ready: true, Subnets: 2}, {Name: "b", Ready: true, Subnets: 1}}, "b", time.Time{}},
		"the loss is not recorded":                                 {subnetplan.Inherit, unrecorded, []subnetplan.CandidateNode{ready("a", newer, none)}, "", time.Time{}},
		"a reserved address without a NodeSubnet":                  {subnetplan.Inherit, withoutSubnet, []subnetplan.CandidateNode{{Name: "a", ReplacesNode: "node-1"}}, "", time.Time{}},
		"no address is reserved":                                   {subnetplan.Inherit, lost(time.Hour), []subnetplan.CandidateNode{ready("a", newer, none)}, "", time.Time{}},
		"one node is in the same zone":                             {subnetplan.Inherit, with(lost(time.Hour, waits), inZoneA), []subnetplan.CandidateNode{ready("a", newer, zoneB), ready("b", newer, zoneA)}, "b", time.Time{}},
		"no node is in the same zone":                              {subnetplan.Inherit, with(lost(time.Hour, waits), inZoneA), []subnetplan.CandidateNode{ready("a", newer, zoneB)}, "", time.Time{}},
		"the node has a taint that the pods may not tolerate":      {subnetplan.Hold, with(lost(time.Hour, follows), inZoneA), []subnetplan.CandidateNode{ready("a", old, taintedOfA)}, "", time.Time{}},
		"one node is in the same node pool":                        {subnetplan.Hold, with(lost(time.Hour, follows), inPool), []subnetplan.CandidateNode{ready("a", old, zoneA), ready("b", old, poolOfA)}, "b", time.Time{}},
	} {
		for i := range c.candidates {
			c.candidates[i].Subnets++
		}
		picked, next := subnetplan.Rules{Policy: c.policy, GracePeriod: 30 * time.Second}.PickExistingNode(c.orphan, c.candidates, clock)
		if picked != c.want || !next.Equal(c.at) {
			t.Errorf("%s: node %q, next decision at %v; want node %q, next decision at %v", name, picked, next, c.want, c.at)
		}
	}
}

func TestExpiredReservations(t *testing.T) {
	onNode, moved, withoutNode := reservedAddress("10.0.0.17", "node-1"), reservedAddress("10.0.0.18", "node-2"), reservedAddress("10.0.0.19", "")
	orphan := lost(30*time.Second, onNode, moved, withoutNode)
	nameless, unobserved := orphan, orphan
	nameless.Node, unobserved.Since = "", time.Time{}
	for name, c := range map[string]struct {
		policy      subnetplan.OrphanPolicy
		gracePeriod time.Duration
		orphan      subnetplan.OrphanedSubnets
		want        []reservation.Address
		at          time.Time
	}{
		"policy Free, one FixedIP names the node": {subnetplan.Free, 30 * time.Second, orphan, []reservation.Address{onNode}, time.Time{}},
		"within the grace period":                 {subnetplan.Free, 40 * time.Second, orphan, nil, clock.Add(10 * time.Second)},
		"the loss is not recorded":                {subnetplan.Free, 0, unobserved, nil, time.Time{}},
		"the subnet never had a node":             {subnetplan.Free, 0, nameless, nil, time.Time{}},
		"policy Inherit":                          {subnetplan.Inherit, 0, orphan, nil, time.Time{}},
		"policy Hold":                             {subnetplan.Hold, 0, orphan, nil, time.Time{}},
	} {
		got, at := subnetplan.Rules{Policy: c.policy, GracePeriod: c.gracePeriod}.ExpiredReservations(c.orphan, clock)
		if diff := cmp.Diff(c.want, got, byValue); diff != "" || !at.Equal(c.at) {
			t.Errorf("%s: next decision at %v, want %v; expired addresses (-want +got): %s", name, at, c.at, diff)
		}
	}
}

func TestReleasable(t *testing.T) {
	for name, c := range map[string]struct {
		orphan subnetplan.OrphanedSubnets
		want   bool
		at     time.Time
	}{
		"after the grace period":                        {lost(30 * time.Second), true, time.Time{}},
		"within the grace period":                       {lost(20 * time.Second), false, clock.Add(10 * time.Second)},
		"a FixedIP reserves an address":                 {lost(time.Hour, reservedAddress("10.0.0.17", "node-1")), false, time.Time{}},
		"the loss is not recorded yet":                  {lost(0), false, time.Time{}},
		"another node has inherited one of the subnets": {with(lost(time.Hour), func(o *subnetplan.OrphanedSubnets) { o.Candidate = "node-2" }), false, time.Time{}},
		"the subnet never had a node":                   {with(lost(0), func(o *subnetplan.OrphanedSubnets) { o.Node = "" }), true, time.Time{}},
		"a reserved address without a NodeSubnet":       {subnetplan.OrphanedSubnets{Node: "node-1"}, false, time.Time{}},
	} {
		got, at := subnetplan.Rules{GracePeriod: 30 * time.Second}.Releasable(c.orphan, clock)
		if got != c.want || !at.Equal(c.at) {
			t.Errorf("%s: releasable %t, next decision at %v; want %t, next decision at %v", name, got, at, c.want, c.at)
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
		"a new node":                      {pools, nil, []address.Family{address.IPv4, address.IPv6}},
		"a node with one family":          {pools, []string{"10.9.0.0/24"}, []address.Family{address.IPv6}},
		"a node with both families":       {pools, []string{"10.9.0.0/24", "fd00::/64"}, nil},
		"a family without a cluster pool": {pools[1:], []string{"10.9.0.0/24"}, nil},
		"no cluster pools":                {nil, nil, nil},
	} {
		if diff := cmp.Diff(c.want, subnetplan.Lacking(c.pools, cidrsOf(c.has...))); diff != "" {
			t.Errorf("%s: families (-want +got): %s", name, diff)
		}
	}
}
