// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reservation"
	"fixedip.io/fixedip/ipam/core/subnetplan"
	"fixedip.io/fixedip/test/gen"
)

// TestOrphan checks that the subnet of a node that is gone is recorded as orphaned. After the grace period a new node of the
// same zone, but not one of another zone, inherits a subnet with reserved addresses. A subnet without reserved addresses is
// released.
func TestOrphan(t *testing.T) {
	zoned := func(zone string) func(*corev1.Node) {
		return func(n *corev1.Node) { n.Labels = map[string]string{corev1.LabelTopologyZone: zone} }
	}
	s := newScene(t)
	s.create(node("node-1", zoned("a")), gen.CiliumNode("node-1"), node("node-2", zoned("a")), gen.CiliumNode("node-2"))
	c := s.controller(s.counting(nil), s.api, rules(subnetplan.Inherit, 28))
	c.pass(s)
	had, empty := s.pools()["node-1"], s.pools()["node-2"]
	reserved := had.Subnets[0].Addr().Next()
	s.create(s.record("mysql-0", "node-1", reserved.String()))
	s.delete(node("node-1"), gen.CiliumNode("node-1"), node("node-2"), gen.CiliumNode("node-2"))
	lost := s.clock.Now()
	c.pass(s)
	var ns v1alpha1.NodeSubnet
	if err := s.api.Get(t.Context(), client.ObjectKey{Name: address.SubnetName(had.Subnets[0])}, &ns); err != nil {
		t.Fatal(err)
	}
	if ns.Status.OrphanedSince == nil || !ns.Status.OrphanedSince.Time.Equal(lost) || !ns.Status.GracePeriodEnd.Time.Equal(lost.Add(time.Minute)) || ns.Status.NodeConstraints == nil || ns.Status.NodeConstraints.Zone != "a" {
		t.Errorf("got status %+v of the orphaned NodeSubnet, want orphaned since %v, a grace period of a minute and zone a", ns.Status, lost)
	}

	s.clock.SetTime(lost.Add(2 * time.Minute))
	s.create(node("other-zone", zoned("b")), gen.CiliumNode("other-zone"))
	c.pass(s)
	if _, claimed := s.claims()[empty.PodCIDRs[0]]; claimed && s.claims()[empty.PodCIDRs[0]] == "node-2" {
		t.Errorf("got claims %v, want that the subnets %v of node-2 without reserved addresses are released", s.claims(), empty.PodCIDRs)
	}
	if got := s.pools()["other-zone"].PodCIDRs; len(got) != 1 || got[0] == had.PodCIDRs[0] {
		t.Errorf("node other-zone: got subnets %v, want one other than %v", got, had.PodCIDRs)
	}
	s.create(node("same-zone", zoned("a")), gen.CiliumNode("same-zone"))
	c.pass(s)
	inheriting := s.pools()["same-zone"]
	if !slices.Equal(inheriting.PodCIDRs, had.PodCIDRs) || inheriting.Entries[reserved] != pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql") {
		t.Errorf("node same-zone: got subnets %v and entries %v, want %v and an owned entry of %s", inheriting.PodCIDRs, inheriting.Entries, had.PodCIDRs, reserved)
	}
	if err := s.api.Get(t.Context(), client.ObjectKey{Name: ns.Name}, &ns); err != nil {
		t.Fatal(err)
	}
	if ns.Spec.NodeName != "same-zone" || ns.Spec.PreviousNodeName != "node-1" || ns.Status.OrphanedSince != nil {
		t.Errorf("got NodeSubnet %+v %+v, want node same-zone, previous node node-1 and no OrphanedSince", ns.Spec, ns.Status)
	}
	s.disjoint()
}

// TestExpiredReservationIsReleased checks that a FixedIP under policy Free is deleted in the same pass that changes its
// condition.
func TestExpiredReservationIsReleased(t *testing.T) {
	s := newScene(t)
	s.create(node("node-1"), gen.CiliumNode("node-1"))
	hold := s.controller(s.counting(nil), s.api, rules(subnetplan.Hold, 28))
	hold.pass(s)
	record := s.record("mysql-0", "node-1", s.pools()["node-1"].Subnets[0].Addr().Next().String())
	s.create(record)
	s.delete(node("node-1"), gen.CiliumNode("node-1"))
	hold.pass(s)
	s.clock.SetTime(s.clock.Now().Add(2 * time.Minute))
	hold.pass(s)
	// The next controller has another policy, and so another message of the condition.
	free := s.controller(s.counting(nil), s.api, rules(subnetplan.Free, 28))
	free.watch(s)
	if _, err := free.reconcileOrphans(t.Context(), All); err != nil {
		t.Fatal(err)
	}
	if err := s.api.Get(t.Context(), client.ObjectKeyFromObject(record), record); !apierrors.IsNotFound(err) {
		t.Errorf("got FixedIP %s with conditions %+v (error %v), want none", record.Name, record.Status.Conditions, err)
	}
}

// TestExistingNodeInherits checks that an existing node inherits the subnet of a lost node if an address in the subnet may
// migrate, and that the event on the existing node names the lost node.
func TestExistingNodeInherits(t *testing.T) {
	s := newScene(t)
	s.create(node("node-1"), gen.CiliumNode("node-1"), node("node-2"), gen.CiliumNode("node-2"))
	inherit := rules(subnetplan.Hold, 28)
	inherit.Failover = v1alpha1.Migrate
	c := s.controller(s.counting(nil), s.api, inherit)
	c.pass(s)
	had := s.pools()["node-1"]
	s.create(s.record("mysql-0", "node-1", had.Subnets[0].Addr().Next().String()))
	s.delete(node("node-1"), gen.CiliumNode("node-1"))
	recorder := events.NewFakeRecorder(10)
	c.Events = recorder
	for range 3 {
		s.clock.SetTime(s.clock.Now().Add(2 * time.Minute))
		c.pass(s)
	}
	if got := s.pools()["node-2"].Subnets; !slices.Contains(got, had.Subnets[0]) {
		t.Fatalf("node-2: got subnets %v, want %s, which node-1 had", got, had.Subnets[0])
	}
	close(recorder.Events)
	var about []string
	for e := range recorder.Events {
		if strings.Contains(e, "Assigned subnets") {
			about = append(about, e)
		}
	}
	want := fmt.Sprintf("Normal SubnetInherited Assigned subnets: %s, including subnets of node node-1, which is gone; IPs reserved in them: 1; pods with such an IP are placed on this node, unless the IP has moved to another node", had.Subnets[0])
	if diff := cmp.Diff([]string{want}, about); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// TestOrphanedCondition checks the message of the conditions of an orphaned NodeSubnet, and that it follows the failover
// policy of the addresses.
func TestOrphanedCondition(t *testing.T) {
	const (
		gone     = "node a is gone; the subnet is orphaned"
		migrates = "; another node that has a subnet and is ready and suitable (zone, region, taints) inherits it after 10s at most, because the failover policy of an IP in it is Migrate"
		frees    = "; at 2026-11-24T12:01:00Z the FixedIPs that reserve IPs in it for this node are deleted, and the subnet is released"
		inherits = "; from 2026-11-24T12:01:00Z on, another node may inherit the subnet if a FixedIP reserves an IP in it; otherwise the subnet is released"
		releases = "; at 2026-11-24T12:01:00Z it is released if no FixedIP reserves an IP in it"
		named    = "if a FixedIP reserves an IP in it, the node that spec.successor names gets it at once"
		atOnce   = "; until the subnet is released or inherited, a new node a gets it at once; " + named
		free     = "no node has had the subnet yet; "
	)
	for name, c := range map[string]struct {
		noNode   bool
		policy   subnetplan.OrphanPolicy
		failover v1alpha1.Failover
		want     string
	}{
		"Hold":             {policy: subnetplan.Hold, want: gone + releases + atOnce},
		"Hold, Migrate":    {policy: subnetplan.Hold, failover: v1alpha1.Migrate, want: gone + migrates + releases + atOnce},
		"Inherit":          {policy: subnetplan.Inherit, want: gone + inherits + atOnce},
		"Inherit, Migrate": {policy: subnetplan.Inherit, failover: v1alpha1.Migrate, want: gone + migrates + releases + atOnce},
		"Free":             {policy: subnetplan.Free, want: gone + frees + atOnce},
		"Free, Migrate":    {policy: subnetplan.Free, failover: v1alpha1.Migrate, want: gone + migrates + frees + atOnce},
		"no node, Free":    {noNode: true, policy: subnetplan.Free, want: free + "it is released as soon as no FixedIP reserves an IP in it; " + named},
		"no node, Inherit": {noNode: true, policy: subnetplan.Inherit, want: free + "from 2026-11-24T12:01:00Z on, a node may inherit the subnet if a FixedIP reserves an IP in it; otherwise the subnet is released; " + named},
	} {
		ns := &v1alpha1.NodeSubnet{ObjectMeta: metav1.ObjectMeta{Name: "10-0-0-16-28", Generation: 3}, Spec: v1alpha1.NodeSubnetSpec{CIDR: "10.0.0.16/28", NodeName: "a"}}
		if c.noNode {
			ns.Spec.NodeName = ""
		}
		sub, _ := subnetplan.FromNodeSubnet(ns)
		k := reservation.Address{Addr: netip.MustParseAddr("10.0.0.20"), Node: ns.Spec.NodeName, Failover: c.failover}
		o := subnetplan.OrphanedSubnets{Node: ns.Spec.NodeName, Subnets: []subnetplan.Subnet{sub}, Reserved: []reservation.Address{k}}
		r := rules(c.policy, 28)
		ctl := &Controller{Rules: r, Ledger: ledger.New(), Clock: clocktesting.NewFakePassiveClock(start)}
		// The first status is made before an address is reserved in the subnet. Its orphanedSince must stay.
		first := o
		first.Reserved = nil
		ns.Status = ctl.orphanStatus(first, sub, start)
		status := ctl.orphanStatus(o, sub, start.Add(time.Second))
		for _, kind := range []string{v1alpha1.ConditionAssigned, v1alpha1.ConditionReady} {
			got := meta.FindStatusCondition(status.Conditions, kind)
			if got == nil || got.Message != c.want || got.ObservedGeneration != 3 || got.Status != metav1.ConditionFalse {
				t.Errorf("%s: got condition %s %+v, want False of generation 3 with the message %q", name, kind, got, c.want)
			}
		}
		if !status.OrphanedSince.Time.Equal(start) {
			t.Errorf("%s: got orphanedSince %v, want %v", name, status.OrphanedSince, start)
		}
	}
}

// TestOnlyNeededSubnetsAreInherited checks that, if nodes are replaced again and again, a node inherits only the subnet of the
// lost node in which a FixedIP reserves an address, and that the other subnets of the lost node are released.
func TestOnlyNeededSubnetsAreInherited(t *testing.T) {
	s := newScene(t)
	s.create(node("node-0"), gen.CiliumNode("node-0"))
	c := s.controller(s.counting(nil), s.api, rules(subnetplan.Inherit, 28))
	c.pass(s)
	reserved := s.pools()["node-0"].Subnets[0]
	s.create(s.record("web-0", "node-0", reserved.Addr().Next().String()))
	for i := 1; i <= 5; i++ {
		// The replacement joins before the node that it replaces is deleted.
		before, name := fmt.Sprintf("node-%d", i-1), fmt.Sprintf("node-%d", i)
		joined := node(name, func(n *corev1.Node) { n.CreationTimestamp = metav1.NewTime(s.clock.Now()) })
		s.create(joined, gen.CiliumNode(name))
		c.pass(s)
		s.delete(node(before), gen.CiliumNode(before))
		for range 4 {
			c.pass(s)
			s.clock.SetTime(s.clock.Now().Add(time.Minute))
		}
		c.pass(s)
		got := s.claims()
		if of := slices.Collect(maps.Values(got)); got[reserved.String()] != name || !slices.Equal(of, []string{name, name}) {
			t.Fatalf("replacement %d: got NodeSubnets %v, want that of %s and one more, both of %s", i, got, reserved, name)
		}
	}
}

// TestVolumesExcludeNode checks that a node does not inherit a subnet if it cannot use the volume of a waiting pod, although
// another waiting pod is nominated to the node. The condition of the FixedIPs gives this reason, with the same message in
// each pass, and the volume is not read in every pass. When a pod is nominated to a node that can use the volume, that node
// inherits the subnet.
func TestVolumesExcludeNode(t *testing.T) {
	s := newScene(t)
	in := func(zone string) func(*corev1.Node) {
		return func(n *corev1.Node) { n.Labels = map[string]string{corev1.LabelTopologyZone: zone} }
	}
	west := node("west", in("west"), func(n *corev1.Node) { n.Spec.Unschedulable = true })
	for _, n := range []*corev1.Node{node("lost", in("west")), west, node("east", in("east"))} {
		s.create(n, gen.CiliumNode(n.Name))
	}
	waits := rules(subnetplan.Inherit, 28)
	waits.Failover = v1alpha1.Wait
	c := s.controller(s.counting(nil), s.api, waits)
	c.pass(s)
	had := s.pools()["lost"].Subnets[0]
	waiting := func(name, nominated string) *corev1.Pod {
		return gen.Pod(name, func(p *corev1.Pod) {
			p.Status.NominatedNodeName = nominated
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
		})
	}
	db, web := waiting("db-0", ""), waiting("web-0", "east")
	db.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data-db-0"}}}}
	// A second pod with the same volume, and a FixedIP of another namespace, whose condition must not name the pods.
	other := waiting("db-1", "")
	other.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data-db-0"}}}}
	foreign := s.record("web-0", "lost", had.Addr().Next().Next().Next().String())
	foreign.Namespace = "foreign"
	s.create(
		other, s.record("db-1", "lost", had.Addr().Next().Next().Next().Next().String()), foreign,
		db, web, s.record("db-0", "lost", had.Addr().Next().String()), s.record("web-0", "lost", had.Addr().Next().Next().String()),
		&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: gen.Namespace, Name: "data-db-0"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv-1"}},
		&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-1"}, Spec: corev1.PersistentVolumeSpec{NodeAffinity: &corev1.VolumeNodeAffinity{
			Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{"west"}},
			}}}},
		}}},
	)
	s.delete(node("lost"), gen.CiliumNode("lost"))
	pass := func() {
		s.clock.SetTime(s.clock.Now().Add(2 * time.Minute))
		c.pass(s)
	}
	message := func(namespace string) string {
		return s.available(client.ObjectKey{Namespace: namespace, Name: "web-0"}).Message
	}
	pass() // records the loss
	pass()
	for range 2 {
		for namespace, what := range map[string]string{gen.Namespace: "volume pv-1 (claim data-db-0) of pod " + gen.Namespace + "/db-0", "foreign": "the volume of a waiting pod of another namespace"} {
			want := "; node east does not inherit the subnet, because it cannot use " + what + "; add, repair or uncordon a node that can use the volume, so that it inherits the subnet"
			if got := message(namespace); !strings.HasSuffix(got, want) || strings.Count(got, "does not inherit") != 1 {
				t.Errorf("condition %s of FixedIP %s/web-0: got message %q, want it to end with %q", v1alpha1.ConditionSubnetAvailable, namespace, got, want)
			}
		}
		if got := s.claims()[had.String()]; got != "lost" {
			t.Errorf("NodeSubnet %s: got node %q, want %q", had, got, "lost")
		}
		s.requests = map[string]int{}
		c.pass(s)
		if diff := cmp.Diff(map[string]int{}, s.requests); diff != "" {
			t.Errorf("requests of passes while no node can inherit (-want +got):\n%s", diff)
		}
	}
	db.Status.NominatedNodeName = "west"
	if err := s.api.Status().Update(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	west.Spec.Unschedulable = false
	if err := s.api.Update(t.Context(), west); err != nil {
		t.Fatal(err)
	}
	pass()
	if got := s.claims()[had.String()]; got != "west" {
		t.Errorf("NodeSubnet %s: got node %q, want %q", had, got, "west")
	}
}

// TestSubnetOfKubernetesIsNotInherited checks that a subnet that Kubernetes assigns waits for the node to which Kubernetes
// assigns it next, although a reserved address in the subnet may migrate.
func TestSubnetOfKubernetesIsNotInherited(t *testing.T) {
	with := func(podCIDR string) func(*corev1.Node) {
		return func(n *corev1.Node) { n.Spec.PodCIDR, n.Spec.PodCIDRs = podCIDR, []string{podCIDR} }
	}
	const subnet = "10.9.1.0/24"
	s := newScene(t)
	s.create(node("node-1", with(subnet)), gen.CiliumNode("node-1"), node("node-2", with("10.9.2.0/24")), gen.CiliumNode("node-2"))
	c := s.controller(s.counting(nil), s.api, subnetplan.Rules{Policy: subnetplan.Hold, GracePeriod: time.Minute, Failover: v1alpha1.Migrate})
	c.FromNode = true
	c.pass(s)
	s.create(s.record("mysql-0", "node-1", "10.9.1.7"))
	s.delete(node("node-1"), gen.CiliumNode("node-1"))
	c.pass(s)
	s.clock.SetTime(s.clock.Now().Add(2 * time.Minute))
	c.pass(s)
	if got := s.claims()[subnet]; got != "node-1" {
		t.Errorf("got node %q for subnet %s, which Kubernetes has not assigned to another node, want node-1", got, subnet)
	}
	s.create(node("node-3", with(subnet)), gen.CiliumNode("node-3"))
	c.pass(s)
	got := s.pool("node-3")
	if want := pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql"); !slices.Equal(got.PodCIDRs, []string{subnet}) || got.Entries[netip.MustParseAddr("10.9.1.7")] != want {
		t.Errorf("node node-3: got subnets %v and entries %v, want %s and an owned entry of 10.9.1.7", got.PodCIDRs, got.Entries, subnet)
	}
	s.disjoint()
}

// TestSubnetOutsideThePools checks that a controller whose cluster pools do not contain a subnet reports the subnet at its
// start, and that the node keeps the subnet (finding R8).
func TestSubnetOutsideThePools(t *testing.T) {
	s := newScene(t)
	s.create(node("a"), gen.CiliumNode("a", "10.0.0.0/28"), node("b"), gen.CiliumNode("b", "10.9.0.0/28"))
	before := rules(subnetplan.Inherit, 28)
	before.Pools = append(before.Pools, address.ClusterPool{CIDR: netip.MustParsePrefix("10.9.0.0/24"), MaskSize: 28})
	s.controller(s.counting(nil), s.api, before).pass(s)
	c := s.controller(s.counting(nil), s.api, rules(subnetplan.Inherit, 28))
	recorder := events.NewFakeRecorder(10)
	c.Events = recorder
	c.pass(s)
	close(recorder.Events)
	var got []string
	for e := range recorder.Events {
		if strings.Contains(e, "ClusterPools") {
			got = append(got, e)
		}
	}
	want := []string{"Warning OutsideClusterPools The subnet is in no CIDR of subnets.clusterPools in the configuration; node b, or a node that inherits it, keeps it while that node exists or a FixedIP reserves an IP in it; nodes get no new subnet outside of these CIDRs; if a CIDR was removed by mistake, add it again"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got): %s", diff)
	}
	if diff := cmp.Diff(map[string]string{"10.0.0.0/28": "a", "10.9.0.0/28": "b"}, s.claims()); diff != "" {
		t.Errorf("claims (-want +got): %s", diff)
	}
}

// TestWaitsFor checks the message of the condition SubnetAvailable for a reserved address that is in no node's subnet.
func TestWaitsFor(t *testing.T) {
	addr, subnets := netip.MustParseAddr("10.0.0.20"), []subnetplan.Subnet{{CIDR: netip.MustParsePrefix("10.0.0.0/28")}, {CIDR: netip.MustParsePrefix("10.0.0.16/28")}}
	const (
		gone     = "Node a, whose subnet contains IP 10.0.0.20, is gone"
		atOnce   = "; a new node a, a node with the label fixedip.io/replaces-node=a, or the node in spec.successor of NodeSubnet 10-0-0-16-28 gets the subnet at once"
		migrates = "; another node that has a subnet and is ready and suitable (zone, region, taints) inherits the subnet after 10s at most, because the failover policy of an IP there is Migrate"
		expires  = "; after 1m0s the IP is released if no node has the subnet by then"
		inCIDR   = "; the IP waits for a node that gets a subnet with the IP; if no CIDR of subnets.clusterPools in the configuration contains the IP, add one"
	)
	for name, c := range map[string]struct {
		node     string
		subnets  []subnetplan.Subnet
		policy   subnetplan.OrphanPolicy
		failover v1alpha1.Failover
		fromNode bool
		want     string
	}{
		"Inherit":                {node: "a", subnets: subnets, policy: subnetplan.Inherit, want: gone + "; after 1m0s another node that can run the waiting pods inherits the subnet" + atOnce},
		"Inherit, Migrate":       {node: "a", subnets: subnets, policy: subnetplan.Inherit, failover: v1alpha1.Migrate, want: gone + migrates + atOnce},
		"Hold":                   {node: "a", subnets: subnets, policy: subnetplan.Hold, want: gone + atOnce},
		"Hold, Migrate":          {node: "a", subnets: subnets, policy: subnetplan.Hold, failover: v1alpha1.Migrate, want: gone + migrates + atOnce},
		"Free":                   {node: "a", subnets: subnets, policy: subnetplan.Free, want: gone + expires + atOnce},
		"Free, Migrate":          {node: "a", subnets: subnets, policy: subnetplan.Free, failover: v1alpha1.Migrate, want: gone + migrates + expires + atOnce},
		"never had a node":       {subnets: subnets, policy: subnetplan.Inherit, want: "No node has had the subnet of IP 10.0.0.20 yet; after 1m0s a node that can run the waiting pods inherits the subnet; to assign the subnet at once, set spec.successor of NodeSubnet 10-0-0-16-28 to the name of a node"},
		"no NodeSubnet":          {node: "a", policy: subnetplan.Inherit, want: "IP 10.0.0.20 is in no node's subnet, and node a of its FixedIP is gone" + inCIDR},
		"no NodeSubnet, no node": {policy: subnetplan.Inherit, want: "IP 10.0.0.20 is in no node's subnet" + inCIDR},
		"Node.spec.podCIDRs":     {node: "a", subnets: subnets, policy: subnetplan.Hold, fromNode: true, want: gone + "; the subnet waits for a node to which Kubernetes assigns it (spec.podCIDRs of the Node)"},
	} {
		k := reservation.Address{Addr: addr, Node: c.node, Failover: c.failover}
		o := subnetplan.OrphanedSubnets{Node: c.node, Subnets: c.subnets, Reserved: []reservation.Address{k}}
		if got := (&Controller{Rules: rules(c.policy, 28), FromNode: c.fromNode}).waitsFor(o, k); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}
