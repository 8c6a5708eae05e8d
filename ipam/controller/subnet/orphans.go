// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reservation"
	"fixedip.io/fixedip/ipam/core/subnetplan"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/ipam/store/fixedips"
)

// releaseInterval is the least time between two releases of orphans. Each lists all FixedIPs and all CiliumNodes, so
// that those that are due within it are released together.
const releaseInterval = 30 * time.Second

// reconcileOrphans looks at all subnets without a node in one request: it records since when their nodes are gone, on
// the NodeSubnets and on the FixedIPs in them, chooses heirs, and gives up what the policy gives up. Nothing is counted
// in memory, so that the grace period goes on when the controller is replaced.
func (c *Controller) reconcileOrphans(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	now := c.Clock.Now()
	if wait := c.looked.Add(passInterval).Sub(now); wait > 0 && wait <= passInterval {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	if !c.Synced() {
		return ctrl.Result{RequeueAfter: passInterval}, nil
	}
	if !c.started.Load() {
		if err := c.start(ctx); err != nil {
			return ctrl.Result{}, err
		}
	}
	c.looked = now
	s, err := c.snapshot(ctx, now)
	if err != nil {
		return ctrl.Result{}, err
	}
	steps := []func(context.Context, *snapshot) error{c.record, c.setConditions, c.inheritOrExpire, c.release}
	for _, step := range steps {
		if err := step(ctx, s); err != nil {
			return ctrl.Result{}, err
		}
	}
	metrics.Reconciled("subnet", now)
	return ctrl.Result{RequeueAfter: max(passInterval, s.next.Sub(now))}, nil
}

// start claims the subnets that CiliumNodes have without a NodeSubnet, as the API server has them, and opens the way
// for nodes that wait for one.
func (c *Controller) start(ctx context.Context) error {
	list, err := c.List(ctx)
	if err != nil {
		return err
	}
	var failed error
	err = each(ctx, c.API, &ciliumv2.CiliumNodeList{}, func(cn *ciliumv2.CiliumNode) {
		if n := ciliumpool.FromCiliumNode(cn); failed == nil {
			failed = c.claimExisting(ctx, n, holder(n, nil), list)
		}
	})
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("claim the subnets that nodes have: %w", err)
	}
	c.reportOutside(ctx, list)
	c.started.Store(true)
	for _, n := range c.Ledger.Nodes() {
		c.Nodes.Add(source.ForName(n.Name))
	}
	return nil
}

// reportOutside reports the subnets that are in no cluster pool: a CIDR was removed or changed.
func (c *Controller) reportOutside(ctx context.Context, list []subnetplan.Subnet) {
	if c.FromNode {
		return
	}
	for _, sub := range list {
		if subnetplan.Outside(c.Rules.Pools, sub.CIDR) {
			klog.FromContext(ctx).Info("A subnet is in no cluster pool", "subnet", sub.CIDR, "node", sub.Node)
			c.Events.Eventf(sub.Object, nil, corev1.EventTypeWarning, "OutsideClusterPools", "CheckPools",
				"The subnet is in no CIDR of the controller's cluster-pool flags: node %s keeps it, and no other node gets one there; add the CIDR again if it was removed by mistake", sub.Node)
		}
	}
}

// record creates the NodeSubnets that reserved addresses lack, and writes on those of orphans since when their nodes
// are gone.
func (c *Controller) record(ctx context.Context, s *snapshot) error {
	for _, m := range s.missing {
		if _, err := c.create(ctx, m.CIDR, subnetplan.Holder{Node: m.Node}); err != nil && !errors.Is(err, errTaken) {
			return err
		}
		s.again()
		if m.Node != "" {
			c.Nodes.Add(source.ForName(m.Node))
		}
	}
	for _, o := range s.orphans {
		if !o.Since.IsZero() || len(o.Subnets) == 0 {
			continue
		}
		if present, err := c.exists(ctx, o.Node); err != nil || present {
			return err
		}
		for _, sub := range o.Subnets {
			switch err := c.updateStatus(ctx, sub, orphanStatus(sub, c.Rules.Hold, s.now)); {
			case err == nil:
				klog.FromContext(ctx).Info("The node of a subnet is gone", "node", o.Node, "subnet", sub.CIDR, "reserved", len(o.Reserved))
			case !errors.Is(err, ErrChanged):
				return err
			}
			s.again()
		}
	}
	return nil
}

// orphanStatus returns the status of a NodeSubnet whose node was observed to be gone.
func orphanStatus(s subnetplan.Subnet, grace time.Duration, now time.Time) v1alpha1.NodeSubnetStatus {
	want := s.Object.Status.DeepCopy()
	since := metav1.NewTime(now.Truncate(time.Second))
	end := metav1.NewTime(since.Add(grace))
	want.OrphanedSince, want.GracePeriodEnd = &since, &end
	message := "no node has had the subnet yet; a FixedIP reserves an address in it"
	if s.Node != "" {
		message = fmt.Sprintf("node %s is gone; the subnet is reserved for a node of that name until %s, and as long as FixedIPs reserve addresses in it", s.Node, end.UTC().Format(time.RFC3339))
	}
	setAssigned(want, s, metav1.ConditionFalse, v1alpha1.ReasonOrphaned, message, now)
	return *want
}

// setConditions brings the condition of all FixedIPs up to date that says whether their subnet has a node.
func (c *Controller) setConditions(ctx context.Context, s *snapshot) error {
	byName := func(a, b client.ObjectKey) int { return strings.Compare(a.String(), b.String()) }
	for _, key := range slices.SortedFunc(maps.Keys(s.available), byName) {
		record, want := s.records[key], s.available[key]
		have := meta.FindStatusCondition(record.Status.Conditions, v1alpha1.ConditionSubnetAvailable)
		if have != nil && have.Status == want.Status && have.Reason == want.Reason {
			continue
		}
		record = record.DeepCopy()
		// SetStatusCondition keeps the time while the status is the same. Here it counts from the change of the reason.
		meta.RemoveStatusCondition(&record.Status.Conditions, v1alpha1.ConditionSubnetAvailable)
		want.LastTransitionTime, want.ObservedGeneration = metav1.NewTime(s.now), record.Generation
		meta.SetStatusCondition(&record.Status.Conditions, want)
		switch err := c.API.Status().Update(ctx, record); {
		case apierrors.IsConflict(err), apierrors.IsNotFound(err):
			s.again()
		case err != nil:
			return fmt.Errorf("write condition %s of FixedIP %s: %w", v1alpha1.ConditionSubnetAvailable, key, err)
		case want.Status == metav1.ConditionFalse:
			c.Events.Eventf(record, nil, corev1.EventTypeWarning, want.Reason, "LookForSubnet", "%s", want.Message)
		}
	}
	return nil
}

// inheritOrExpire makes living nodes the holders of orphans, which they are then given like a node that returns. If none
// may inherit an orphan, it deletes the FixedIPs whose reservations there have expired by policy Free.
func (c *Controller) inheritOrExpire(ctx context.Context, s *snapshot) error {
	for _, o := range s.orphans {
		heir, at := c.Rules.PickExistingNode(o, s.heirs, s.now)
		if heir == "" {
			s.soon(at)
			if err := c.releaseExpired(ctx, o, s); err != nil {
				return err
			}
			continue
		}
		s.again()
		n, ok := c.Ledger.Node(heir)
		if !ok {
			continue
		}
		switch _, err := c.Take(ctx, o, holder(n, s.nodes[heir])); {
		case err == nil:
			c.Nodes.Add(source.ForName(heir))
			// The next orphan goes to another node, if that is as good.
			i := slices.IndexFunc(s.heirs, func(h subnetplan.CandidateNode) bool { return h.Name == heir })
			s.heirs[i].Subnets += len(o.Subnets)
		case !errors.Is(err, ErrChanged):
			return fmt.Errorf("give the subnets of node %s to node %s: %w", o.Node, heir, err)
		}
	}
	return nil
}

// releaseExpired deletes the FixedIPs of a node that is gone whose reservations have expired by policy Free.
func (c *Controller) releaseExpired(ctx context.Context, o subnetplan.OrphanedSubnets, s *snapshot) error {
	kept, at := c.Rules.ExpiredReservations(o, s.now)
	s.soon(at)
	if len(kept) == 0 {
		return nil
	}
	// A deletion can't be undone: the caches don't suffice.
	if present, err := c.exists(ctx, o.Node); err != nil || present {
		return err
	}
	for _, k := range kept {
		record := s.records[k.Record]
		if record.DeletionTimestamp != nil {
			continue
		}
		err := c.API.Delete(ctx, record, client.Preconditions{UID: &record.UID, ResourceVersion: &record.ResourceVersion})
		switch {
		case apierrors.IsConflict(err), apierrors.IsNotFound(err):
			// The other family of the same FixedIP, or it was written meanwhile.
		case err != nil:
			return fmt.Errorf("delete FixedIP %s: %w", k.Record, err)
		default:
			c.Events.Eventf(record, nil, corev1.EventTypeNormal, "GivenUp", "DeleteRecord", "Node %s is gone for %v, and --orphaned-subnet-policy is %s: address %v is released, and the pod gets another", o.Node, c.Rules.Hold, subnetplan.Free, record.Spec.IPs)
		}
	}
	return nil
}

// release deletes the NodeSubnets of orphans that nothing needs any more: no FixedIP reserves an address in them, and
// no pool has one. The CIDRs are free again.
func (c *Controller) release(ctx context.Context, s *snapshot) error {
	var due []subnetplan.OrphanedSubnets
	var candidates []netip.Prefix
	for _, o := range s.orphans {
		ok, at := c.Rules.Releasable(o, s.now)
		if cidrs := subnetplan.CIDRs(o.Subnets); ok && !c.Ledger.HasForeignAddresses(cidrs) {
			due, candidates = append(due, o), append(candidates, cidrs...)
		}
		s.soon(at)
	}
	if len(due) == 0 {
		return nil
	}
	if next := c.released.Add(releaseInterval); s.now.Before(next) {
		s.soon(next)
		return nil
	}
	c.released = s.now
	needed, err := c.needed(ctx, candidates)
	if err != nil {
		return err
	}
	for _, o := range due {
		if slices.ContainsFunc(o.Subnets, func(sub subnetplan.Subnet) bool { return needed.OverlapsPrefix(sub.CIDR) }) {
			continue
		}
		if present, err := c.exists(ctx, o.Node); err != nil {
			return err
		} else if present {
			continue
		}
		for _, sub := range o.Subnets {
			// The version is the one that was read before: a node that has come back since has written another.
			switch err := c.delete(ctx, sub); {
			case err == nil:
				klog.FromContext(ctx).Info("Subnet released", "node", o.Node, "subnet", sub.CIDR)
			case !errors.Is(err, ErrChanged):
				return err
			}
		}
	}
	return nil
}

// needed returns the addresses in the subnets that a FixedIP reserves or that a pool has an entry for, and the subnets
// of CiliumNodes, as the API server has them.
func (c *Controller) needed(ctx context.Context, in []netip.Prefix) (*netipx.IPSet, error) {
	kept, err := c.reservedLive(ctx, in)
	if err != nil {
		return nil, err
	}
	var needed netipx.IPSetBuilder
	for _, k := range kept {
		needed.Add(k.Addr)
	}
	inside := address.Union(in)
	err = each(ctx, c.API, &ciliumv2.CiliumNodeList{}, func(cn *ciliumv2.CiliumNode) {
		n := ciliumpool.FromCiliumNode(cn)
		for _, s := range n.Subnets {
			needed.AddPrefix(s)
		}
		for a := range n.Entries {
			if inside.Contains(a) {
				needed.Add(a)
			}
		}
	})
	if err != nil {
		return nil, err
	}
	return needed.IPSet()
}

// unavailableIndex finds the FixedIPs whose condition says that their subnet has no node.
const unavailableIndex = "subnetUnavailable"

// unavailable is the index function of unavailableIndex.
func unavailable(obj client.Object) []string {
	if meta.IsStatusConditionFalse(obj.(*v1alpha1.FixedIP).Status.Conditions, v1alpha1.ConditionSubnetAvailable) {
		return []string{"true"}
	}
	return nil
}

// snapshot is what the caches show of all subnets at one moment.
type snapshot struct {
	now time.Time
	// next is when to look again.
	next time.Time
	list []subnetplan.Subnet
	// nodes are all Nodes. Key: the name.
	nodes   map[string]*corev1.Node
	heirs   []subnetplan.CandidateNode
	orphans []subnetplan.OrphanedSubnets
	// missing are the subnets of reserved addresses that have no NodeSubnet.
	missing []subnetplan.Subnet
	// records are the FixedIPs that a condition is for.
	records map[client.ObjectKey]*v1alpha1.FixedIP
	// available is the condition that each FixedIP should have which needs one.
	available map[client.ObjectKey]metav1.Condition
}

// soon has all orphans looked at again at a time; zero: not because of this.
func (s *snapshot) soon(at time.Time) {
	if !at.IsZero() && at.Before(s.next) {
		s.next = at
	}
}

// again has all orphans looked at again as soon as the caches may show what was written.
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
	// with has the nodes that have subnets, or a claim of one.
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

// addOrphans adds the orphans, and the condition of the FixedIPs in them. FixedIPs whose node exists and is about to
// have its subnets back keep the condition that they have.
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
	// byOwner has each waiting pod once, although it may wait for an address of each family. Key: the pod as pool entries
	// name it.
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

// addRecords adds the FixedIPs that are in no pool's subnet, whose subnet overlaps another, or that say so and should
// not: all others need nothing. kept are the addresses of the first.
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
		s.available[key] = condition(metav1.ConditionFalse, v1alpha1.ReasonSubnetOverlap, fmt.Sprintf("The subnet of %v overlaps that of another node; nothing in it is handed out until one of the two is changed", record.Spec.IPs))
	}
	homeless, err := fixedips.Read(ctx, c.Cached, c.Ledger.ReservationsWithoutSubnet())
	if err != nil {
		return nil, err
	}
	for _, record := range homeless {
		s.records[client.ObjectKeyFromObject(record)] = record
	}
	for _, k := range reservation.Of(homeless...) {
		// The other family of the FixedIP may have its home.
		if len(c.Ledger.HomesOf(k.Addr)) == 0 {
			kept = append(kept, k)
		}
	}
	return kept, nil
}

// waitsFor says what a reserved address without a home waits for.
func (c *Controller) waitsFor(o subnetplan.OrphanedSubnets, k reservation.Address) string {
	what := fmt.Sprintf("No node has a subnet with %s", k.Addr)
	if o.Node != "" {
		what = fmt.Sprintf("Node %s, whose subnet has %s, is gone", o.Node, k.Addr)
	}
	if len(o.Subnets) == 0 {
		return what + ", and no cluster pool has the address: it waits for a node with such a subnet"
	}
	switch c.Rules.Policy {
	case subnetplan.Inherit:
		what += fmt.Sprintf("; after %v another node that can run the pod gets it", c.Rules.Hold)
	case subnetplan.Free:
		what += fmt.Sprintf("; after %v the address is released", c.Rules.Hold)
	}
	if o.Node == "" {
		return what
	}
	return what + fmt.Sprintf("; a node of that name, or one with the label %s=%s, gets it at once", replacesNodeLabel, o.Node)
}

func condition(status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: v1alpha1.ConditionSubnetAvailable, Status: status, Reason: reason, Message: message}
}
