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

// snapshot is the state of all subnets in the caches at one moment, for one pass over all orphans.
type snapshot struct {
	now time.Time
	// next is when the next pass begins at the latest.
	next time.Time
	list []subnetplan.Subnet
	// nodes contains all Nodes. Key: the name.
	nodes   map[string]*corev1.Node
	heirs   []subnetplan.CandidateNode
	orphans []subnetplan.OrphanedSubnets
	// missing are the subnets of reserved addresses that have no NodeSubnet.
	missing []subnetplan.Subnet
	// records contains the FixedIPs whose condition SubnetAvailable may have to change. Key: the FixedIP.
	records map[client.ObjectKey]*v1alpha1.FixedIP
	// available contains the condition SubnetAvailable that a FixedIP should have. Key: the FixedIP.
	available map[client.ObjectKey]metav1.Condition
}

// soon makes the next pass start at the given time at the latest; the zero time has no effect.
func (s *snapshot) soon(at time.Time) {
	if !at.IsZero() && at.Before(s.next) {
		s.next = at
	}
}

// again schedules the next pass for when the caches may show what was written.
func (s *snapshot) again() { s.soon(s.now.Add(passInterval)) }

func (c *Controller) snapshot(ctx context.Context, now time.Time) (*snapshot, error) {
	var nodes corev1.NodeList
	if err := c.Cached.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list Nodes from the cache: %w", err)
	}
	s := &snapshot{now: now, next: now.Add(c.Resync), nodes: map[string]*corev1.Node{}, records: map[client.ObjectKey]*v1alpha1.FixedIP{}, available: map[client.ObjectKey]metav1.Condition{}}
	var err error
	if s.list, err = c.List(ctx); err != nil {
		return nil, err
	}
	for i := range nodes.Items {
		s.nodes[nodes.Items[i].Name] = &nodes.Items[i]
	}
	taken := subnetplan.CIDRs(s.list)
	var overlapping []netip.Prefix
	// with contains the nodes that have or claim a subnet. Key: the name.
	with := map[string]bool{}
	for _, sub := range s.list {
		with[sub.Node] = true
	}
	for _, n := range c.Ledger.Nodes() {
		taken = append(taken, n.Subnets...)
		with[n.Name] = with[n.Name] || len(n.Subnets) > 0
		if node := s.nodes[n.Name]; node != nil && len(n.Subnets) > 0 {
			s.heirs = append(s.heirs, heir(n.Name, len(n.Subnets), node))
		}
		if _, overlap := c.Ledger.OverlapsWith(n.Name); overlap {
			overlapping = append(overlapping, n.Subnets...)
		}
	}
	kept, err := c.addRecords(ctx, s, overlapping)
	if err != nil {
		return nil, err
	}
	s.missing = subnetplan.Missing(c.Rules.Pools, address.Union(taken), kept, func(node string) bool { return with[node] })
	return s, c.addOrphans(ctx, s, kept)
}

// addOrphans adds the orphans, and the conditions of the FixedIPs that reserve addresses there. A FixedIP whose node
// exists and is about to get its subnets back keeps its condition.
func (c *Controller) addOrphans(ctx context.Context, s *snapshot, kept []reservation.Address) error {
	for _, k := range kept {
		delete(s.available, k.Record)
	}
	gone := func(name string) bool {
		_, pooled := c.Ledger.Node(name)
		return !pooled && s.nodes[name] == nil
	}
	for _, o := range subnetplan.Orphans(s.list, kept, gone) {
		if !gone(o.Node) {
			continue
		}
		var err error
		if o.Waiting, err = c.waiting(ctx, o); err != nil {
			return err
		}
		s.orphans = append(s.orphans, o)
		reason := v1alpha1.ReasonNodeGone
		if c.Rules.InheritancePending(o) {
			reason = v1alpha1.ReasonInheritancePending
		}
		for _, k := range o.Reserved {
			s.available[k.Record] = condition(metav1.ConditionFalse, reason, c.waitsFor(o, k))
		}
	}
	return nil
}

// waiting returns the pods that wait for reserved addresses of an orphan, as the cache shows them.
func (c *Controller) waiting(ctx context.Context, o subnetplan.OrphanedSubnets) ([]*corev1.Pod, error) {
	// byOwner contains each waiting pod once, although a pod may wait for an address of each family. Key: the pod as pool
	// entries name it.
	byOwner := map[string]*corev1.Pod{}
	for _, k := range o.Reserved {
		namespace, name, ok := pool.SplitOwnerKey(k.Entry.Owner)
		if !ok {
			continue
		}
		pod, err := index.Get[corev1.Pod](ctx, c.Cached, client.ObjectKey{Namespace: namespace, Name: name})
		if err != nil {
			return nil, err
		}
		if podutil.IsUnschedulable(pod) {
			byOwner[k.Entry.Owner] = pod
		}
	}
	return slices.Collect(maps.Values(byOwner)), nil
}

// addRecords adds the FixedIPs whose condition may have to change: those in no node's subnet, those in overlapping subnets, and
// those whose condition SubnetAvailable is False. kept are the addresses of the first group.
func (c *Controller) addRecords(ctx context.Context, s *snapshot, overlapping []netip.Prefix) (kept []reservation.Address, err error) {
	var said v1alpha1.FixedIPList
	if err := c.Cached.List(ctx, &said, client.MatchingFields{unavailableIndex: "true"}); err != nil {
		return nil, fmt.Errorf("list the FixedIPs whose subnet has no node from the cache: %w", err)
	}
	for i := range said.Items {
		key := client.ObjectKeyFromObject(&said.Items[i])
		s.records[key] = &said.Items[i]
		s.available[key] = condition(metav1.ConditionTrue, v1alpha1.ReasonSubnetAssigned, "The subnet has a node")
	}
	inBoth, err := fixedips.Read(ctx, c.Cached, c.Ledger.ReservationsIn(overlapping...))
	if err != nil {
		return nil, err
	}
	for _, record := range inBoth {
		key := client.ObjectKeyFromObject(record)
		s.records[key] = record
		s.available[key] = condition(metav1.ConditionFalse, v1alpha1.ReasonSubnetOverlap, fmt.Sprintf("The subnet of %v overlaps that of another node; no address in it is claimed until the podCIDRs of one of the two nodes are changed", record.Spec.IPs))
	}
	withoutSubnet, err := fixedips.Read(ctx, c.Cached, c.Ledger.ReservationsWithoutSubnet())
	if err != nil {
		return nil, err
	}
	for _, record := range withoutSubnet {
		s.records[client.ObjectKeyFromObject(record)] = record
	}
	for _, k := range reservation.Of(withoutSubnet...) {
		// An address of the other family may have a home node.
		if len(c.Ledger.HomesOf(k.Addr)) == 0 {
			kept = append(kept, k)
		}
	}
	return kept, nil
}

// waitsFor returns the message of the condition: what a reserved address without a home node waits for.
func (c *Controller) waitsFor(o subnetplan.OrphanedSubnets, k reservation.Address) string {
	what := fmt.Sprintf("No node has a subnet with %s", k.Addr)
	if o.Node != "" {
		what = fmt.Sprintf("Node %s, whose subnet has %s, is gone", o.Node, k.Addr)
	}
	if len(o.Subnets) == 0 {
		return what + ", and no cluster pool has the address; the address waits for a node with such a subnet"
	}
	switch c.Rules.Policy {
	case subnetplan.Inherit:
		what += fmt.Sprintf("; after %v another node that can run the pod inherits the subnet", c.Rules.Hold)
	case subnetplan.Free:
		what += fmt.Sprintf("; after %v the address is released", c.Rules.Hold)
	}
	if o.Node == "" {
		return what
	}
	return what + fmt.Sprintf("; a node of that name, or a node with the label %s=%s, gets the subnet at once", replacesNodeLabel, o.Node)
}

func condition(status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: v1alpha1.ConditionSubnetAvailable, Status: status, Reason: reason, Message: message}
}
