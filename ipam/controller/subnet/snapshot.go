// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reservation"
	"fixedip.io/fixedip/ipam/core/subnetplan"
	"fixedip.io/fixedip/ipam/store/fixedips"
)

// snapshot is the state of all subnets in the caches at one moment, for one pass over all orphaned subnets.
type snapshot struct {
	now time.Time
	// next is the latest time at which the next pass begins.
	next time.Time
	// list contains all NodeSubnets.
	list []subnetplan.Subnet
	// nodes contains all Nodes. Key: the name.
	nodes map[string]*corev1.Node
	// subnets contains the subnets of all CiliumNodes, and overlaps the nodes whose subnets overlap those of another node.
	// Key: the name.
	subnets  map[string][]netip.Prefix
	overlaps map[string]bool
	// candidates are the nodes with subnets, which may inherit orphaned subnets; empty if there are no orphans.
	candidates []subnetplan.CandidateNode
	orphans    []orphan
	// missing are the subnets of reserved addresses that have no NodeSubnet.
	missing []subnetplan.Subnet
	// records contains the FixedIPs whose condition SubnetAvailable may have to change. Key: the FixedIP.
	records map[client.ObjectKey]*v1alpha1.FixedIP
	// available contains the condition SubnetAvailable that a FixedIP should have. Key: the FixedIP.
	available map[client.ObjectKey]metav1.Condition
	// unread contains the errors of orphans whose volumes could not be read. No node inherits these orphans in this pass.
	unread error
}

// orphan contains the orphaned subnets of one node.
type orphan struct {
	subnetplan.OrphanedSubnets
	// inheritor is the existing node that inherits the subnets in this pass; empty if there is none.
	inheritor string
}

// soon makes the next pass start at the given time at the latest; the zero time has no effect.
func (s *snapshot) soon(at time.Time) {
	if !at.IsZero() && at.Before(s.next) {
		s.next = at
	}
}

// candidate returns the candidate with a name, which must be in candidates.
func (s *snapshot) candidate(name string) *subnetplan.CandidateNode {
	i := slices.IndexFunc(s.candidates, func(h subnetplan.CandidateNode) bool { return h.Name == name })
	return &s.candidates[i]
}

// again makes the next pass start after passInterval, when the caches may show the writes of this pass.
func (s *snapshot) again() { s.soon(s.now.Add(passInterval)) }

// snapshot returns the state of all subnets in the caches. now is the time of the pass.
func (c *Controller) snapshot(ctx context.Context, now time.Time) (*snapshot, error) {
	var nodes corev1.NodeList
	if err := c.Cached.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list Nodes from the cache: %w", err)
	}
	s := &snapshot{
		now: now, next: now.Add(c.Resync), overlaps: map[string]bool{},
		nodes: make(map[string]*corev1.Node, len(nodes.Items)), subnets: make(map[string][]netip.Prefix, len(nodes.Items)),
		records: map[client.ObjectKey]*v1alpha1.FixedIP{}, available: map[client.ObjectKey]metav1.Condition{},
	}
	var err error
	if s.list, err = c.List(ctx); err != nil {
		return nil, err
	}
	for i := range nodes.Items {
		s.nodes[nodes.Items[i].Name] = &nodes.Items[i]
	}
	var overlapping []netip.Prefix
	all := c.Ledger.Nodes()
	for _, n := range all {
		s.subnets[n.Name] = n.Subnets
		if _, overlap := c.Ledger.OverlapsWith(n.Name); overlap {
			s.overlaps[n.Name] = true
			overlapping = append(overlapping, n.Subnets...)
		}
	}
	reserved, err := c.addRecords(ctx, s, overlapping)
	if err != nil {
		return nil, err
	}
	s.addMissing(c.Rules.Pools, all, reserved)
	if err := c.addOrphans(ctx, s, reserved); err != nil {
		return nil, err
	}
	s.addCandidates(all)
	return s, nil
}

// addMissing adds the missing subnets. nodes are all nodes with a CiliumNode. reserved are the reserved addresses without a home
// node; if there are none, as in most passes, addMissing does nothing.
func (s *snapshot) addMissing(pools []address.ClusterPool, nodes []pool.NodePool, reserved []reservation.Address) {
	if len(reserved) == 0 {
		return
	}
	taken := subnetplan.CIDRs(s.list)
	// with contains the nodes that have a subnet or that a NodeSubnet names. Key: the name.
	with := map[string]bool{}
	for _, sub := range s.list {
		with[sub.Node] = true
	}
	for _, n := range nodes {
		taken = append(taken, n.Subnets...)
		with[n.Name] = with[n.Name] || len(n.Subnets) > 0
	}
	s.missing = subnetplan.Missing(pools, address.Union(taken), reserved, func(node string) bool { return with[node] })
}

// addCandidates adds the nodes that may inherit orphaned subnets, if there are such subnets. nodes are all nodes with a CiliumNode.
func (s *snapshot) addCandidates(nodes []pool.NodePool) {
	if len(s.orphans) == 0 {
		return
	}
	for _, n := range nodes {
		if node := s.nodes[n.Name]; node != nil && len(n.Subnets) > 0 {
			s.candidates = append(s.candidates, candidate(n.Name, len(n.Subnets), node))
		}
	}
}

// addOrphans adds the orphaned subnets, and the conditions of the FixedIPs that reserve addresses in them. reserved
// are the reserved addresses without a home node. If the node of such an address exists, the condition of the FixedIP
// does not change, because that node is about to get the subnet.
func (c *Controller) addOrphans(ctx context.Context, s *snapshot, reserved []reservation.Address) error {
	for _, k := range reserved {
		// The other address of the FixedIP may be in overlapping subnets, which the condition reports first.
		if s.available[k.Record].Reason != v1alpha1.ReasonSubnetOverlap {
			delete(s.available, k.Record)
		}
	}
	gone := func(name string) bool {
		_, pooled := c.Ledger.Node(name)
		return !pooled && s.nodes[name] == nil
	}
	for _, o := range subnetplan.Orphans(s.list, reserved, gone) {
		if !gone(o.Node) {
			continue
		}
		var err error
		if o.Waiting, err = c.waiting(ctx, o); err != nil {
			return err
		}
		s.orphans = append(s.orphans, orphan{OrphanedSubnets: o})
		reason := v1alpha1.ReasonNodeGone
		if c.Rules.InheritancePending(o) {
			reason = v1alpha1.ReasonInheritancePending
		}
		for _, k := range o.Reserved {
			waits := condition(metav1.ConditionFalse, reason, c.waitsFor(o, k))
			if overlap := s.available[k.Record]; overlap.Reason == v1alpha1.ReasonSubnetOverlap {
				// The other address of the FixedIP is in overlapping subnets, which an administrator has to resolve first.
				waits = condition(overlap.Status, overlap.Reason, overlap.Message+". "+waits.Message)
			}
			s.available[k.Record] = waits
		}
	}
	return nil
}

// waiting returns the unschedulable pods with reserved addresses in the orphaned subnets o, as the cache shows them, sorted.
func (c *Controller) waiting(ctx context.Context, o subnetplan.OrphanedSubnets) ([]*corev1.Pod, error) {
	// byOwner contains each pod once, even if the pod has addresses of both families. Key: the owner text of its entries.
	byOwner := map[string]*corev1.Pod{}
	for _, k := range o.Reserved {
		namespace, name, ok := pool.SplitOwnerKey(k.Entry.Owner())
		if !ok {
			continue
		}
		pod, err := index.Get[corev1.Pod](ctx, c.Cached, client.ObjectKey{Namespace: namespace, Name: name})
		if err != nil {
			return nil, err
		}
		if podutil.IsUnschedulable(pod) {
			byOwner[k.Entry.Owner()] = pod
		}
	}
	var pods []*corev1.Pod
	for _, owner := range slices.Sorted(maps.Keys(byOwner)) {
		pods = append(pods, byOwner[owner])
	}
	return pods, nil
}

// addRecords adds the FixedIPs whose condition may have to change: those with an address in no node's subnet, those with
// an address in overlapping subnets, and those whose condition SubnetAvailable is False. It returns the addresses of the first
// group that have no home node.
func (c *Controller) addRecords(ctx context.Context, s *snapshot, overlapping []netip.Prefix) (reserved []reservation.Address, err error) {
	var list v1alpha1.FixedIPList
	if err := c.Cached.List(ctx, &list, client.MatchingFields{unavailableIndex: "true"}); err != nil {
		return nil, fmt.Errorf("list the FixedIPs whose condition SubnetAvailable is False from the cache: %w", err)
	}
	for i := range list.Items {
		key := client.ObjectKeyFromObject(&list.Items[i])
		s.records[key] = &list.Items[i]
		s.available[key] = condition(metav1.ConditionTrue, v1alpha1.ReasonSubnetAssigned, "A node has the subnet of each reserved IP")
	}
	inOverlap, err := fixedips.Read(ctx, c.Cached, c.Ledger.ReservationsIn(overlapping...))
	if err != nil {
		return nil, err
	}
	for _, record := range inOverlap {
		key := client.ObjectKeyFromObject(record)
		s.records[key] = record
		s.available[key] = condition(metav1.ConditionFalse, v1alpha1.ReasonSubnetOverlap, c.overlapMessage(subnetplan.ReservedIn(overlapping, reservation.Of(record))))
	}
	withoutSubnet, err := fixedips.Read(ctx, c.Cached, c.Ledger.ReservationsWithoutSubnet())
	if err != nil {
		return nil, err
	}
	for _, record := range withoutSubnet {
		s.records[client.ObjectKeyFromObject(record)] = record
	}
	for _, k := range reservation.Of(withoutSubnet...) {
		// The other address of a dual-stack FixedIP may have a home node.
		if len(c.Ledger.HomesOf(k.Addr)) == 0 {
			reserved = append(reserved, k)
		}
	}
	return reserved, nil
}

// overlapMessage returns the message of the condition SubnetAvailable of a FixedIP with addresses in overlapping subnets.
func (c *Controller) overlapMessage(reserved []reservation.Address) string {
	var addrs []netip.Addr
	overlapping := overlapOf("", "")
	for _, k := range reserved {
		addrs = append(addrs, k.Addr)
		for _, home := range c.Ledger.HomesOf(k.Addr) {
			if other, overlap := c.Ledger.OverlapsWith(home); overlap {
				overlapping = overlapOf(home, other)
			}
		}
	}
	return fmt.Sprintf("%s, including %s; %s", overlapping, address.Join(addrs), pool.OverlapHelp)
}

// overlapOf returns the beginning of a message about the overlapping subnets of two nodes; empty: the nodes are not known.
func overlapOf(node, other string) string {
	nodes := "two nodes"
	if node != "" {
		nodes = fmt.Sprintf("nodes %s and %s", node, other)
	}
	return fmt.Sprintf("The subnets of %s overlap, so that no IP in them is assigned", nodes)
}

// waitsFor returns the message of the condition SubnetAvailable for k, an address without a home node in o.Reserved.
func (c *Controller) waitsFor(o subnetplan.OrphanedSubnets, k reservation.Address) string {
	if len(o.Subnets) == 0 {
		return c.waitsForSubnet(o, k)
	}
	message, other := fmt.Sprintf("No node has had the subnet of IP %s yet", k.Addr), "a node"
	if o.Node != "" {
		message, other = fmt.Sprintf("Node %s, whose subnet contains IP %s, is gone", o.Node, k.Addr), "another node"
	}
	if c.FromNode {
		message += "; the subnet waits for a node to which Kubernetes assigns it (spec.podCIDRs of the Node)"
	}
	switch {
	case c.FromNode:
	case c.waitsForMigration(o):
		message += fmt.Sprintf("; %s that has a subnet and is ready and suitable (zone, region, taints) inherits the subnet after 10s at most, because the failover policy of an IP there is Migrate", other)
	case c.Rules.Policy == subnetplan.Inherit:
		message += fmt.Sprintf("; after %v %s that can run the waiting pods inherits the subnet", c.Rules.GracePeriod, other)
	}
	if c.Rules.Expires(o, k) {
		message += fmt.Sprintf("; after %v the IP is released if no node has the subnet by then", c.Rules.GracePeriod)
	}
	if c.FromNode {
		return message
	}
	// Each address in o.Reserved is in one of the subnets.
	i := slices.IndexFunc(o.Subnets, func(s subnetplan.Subnet) bool { return s.CIDR.Contains(k.Addr) })
	field := "spec.successor of NodeSubnet " + address.SubnetName(o.Subnets[i].CIDR)
	if o.Node == "" {
		return message + "; to assign the subnet at once, set " + field + " to the name of a node"
	}
	return message + fmt.Sprintf("; a new node %s, a node with the label %s=%s, or the node in %s gets the subnet at once", o.Node, replacesNodeLabel, o.Node, field)
}

// waitsForMigration reports whether another node inherits the orphaned subnets o, whatever the policy is, because an address
// in them may migrate.
func (c *Controller) waitsForMigration(o subnetplan.OrphanedSubnets) bool {
	// With policy Hold, a node may inherit the subnets only if an address may migrate.
	hold := c.Rules
	hold.Policy = subnetplan.Hold
	return !c.FromNode && hold.InheritancePending(o)
}

// waitsForSubnet is waitsFor for an address that no NodeSubnet contains.
func (c *Controller) waitsForSubnet(o subnetplan.OrphanedSubnets, k reservation.Address) string {
	message := fmt.Sprintf("IP %s is in no node's subnet", k.Addr)
	if o.Node != "" {
		message += fmt.Sprintf(", and node %s of its FixedIP is gone", o.Node)
	}
	if c.FromNode {
		return message + "; the IP waits for a node to which Kubernetes assigns a subnet with the IP (spec.podCIDRs of the Node)"
	}
	return message + "; the IP waits for a node that gets a subnet with the IP; if no CIDR of subnets.clusterPools in the configuration contains the IP, add one"
}

func condition(status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: v1alpha1.ConditionSubnetAvailable, Status: status, Reason: reason, Message: message}
}
