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
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/subnetplan"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// releaseInterval is the minimum time between two releases of orphaned subnets. Each release lists all FixedIPs and
// all CiliumNodes at the API server. Subnets that become due in between are released together.
const releaseInterval = 30 * time.Second

// reconcileOrphans handles all orphaned subnets in one pass. It records in NodeSubnets and FixedIPs that their nodes
// are gone, and chooses nodes that inherit the subnets. With policy Free it deletes FixedIPs whose grace period is over.
// With every policy it releases the subnets that are due (Rules.Releasable) and in which no FixedIP reserves an address. The
// time of the loss is in the NodeSubnets, so that the grace period continues if another replica takes over.
func (c *Controller) reconcileOrphans(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	now := c.Clock.Now()
	if wait := c.lastPass.Add(passInterval).Sub(now); wait > 0 && wait <= passInterval {
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
	c.lastPass = now
	s, err := c.snapshot(ctx, now)
	if err != nil {
		return ctrl.Result{}, err
	}
	steps := []func(context.Context, *snapshot) error{c.record, c.chooseInheritors, c.setConditions, c.inheritOrExpire, c.release}
	for _, step := range steps {
		if err := step(ctx, s); err != nil {
			return ctrl.Result{}, err
		}
	}
	if s.unread != nil {
		return ctrl.Result{}, s.unread
	}
	metrics.Reconciled("subnet", now)
	return ctrl.Result{RequeueAfter: max(passInterval, s.next.Sub(now))}, nil
}

// start claims the subnets that CiliumNodes have at the API server (claimExisting), and reports the NodeSubnets that are in no
// cluster pool. Then it allows reconcileNode to assign subnets, and enqueues all nodes.
func (c *Controller) start(ctx context.Context) error {
	list, err := c.List(ctx)
	if err != nil {
		return err
	}
	var failed error
	err = each(ctx, c.API, &ciliumv2.CiliumNodeList{}, func(cn *ciliumv2.CiliumNode) {
		if n := ciliumpool.FromCiliumNode(cn); failed == nil {
			failed = c.claimExisting(ctx, n, assignee(n, nil), list)
		}
	})
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("claim the subnets of all CiliumNodes: %w", err)
	}
	c.reportOutside(ctx, list)
	c.started.Store(true)
	for _, n := range c.Ledger.Nodes() {
		c.Nodes.Add(source.ForName(n.Name))
	}
	return nil
}

// reportOutside records an event on each NodeSubnet that is in no cluster pool: a CIDR was removed from the configuration or
// changed there.
func (c *Controller) reportOutside(ctx context.Context, list []subnetplan.Subnet) {
	if c.FromNode {
		return
	}
	for _, sub := range list {
		if subnetplan.Outside(c.Rules.Pools, sub.CIDR) {
			klog.FromContext(ctx).Info("A subnet is in no cluster pool", "subnet", sub.CIDR, "node", sub.Node)
			c.Events.Eventf(sub.Object, nil, corev1.EventTypeWarning, "OutsideClusterPools", "CheckPools", "%s", outside(sub.Node))
		}
	}
}

// outside returns the note of the event about a subnet that is in no cluster pool. node is the node that has the subnet or had
// it last; empty: there is none.
func outside(node string) string {
	usage := "no node has had it yet; a node can inherit it while a FixedIP reserves an IP in it"
	if node != "" {
		usage = "node " + node + ", or a node that inherits it, keeps it while that node exists or a FixedIP reserves an IP in it"
	}
	return "The subnet is in no CIDR of subnets.clusterPools in the configuration; " + usage + "; nodes get no new subnet outside of these CIDRs; if a CIDR was removed by mistake, add it again"
}

// record creates the NodeSubnets that are missing for reserved addresses, and sets OrphanedSince in the NodeSubnets whose
// nodes are gone or that never had a node. It keeps the conditions of orphaned NodeSubnets up to date, and reports the claims
// whose subnets are not in the CiliumNodes of their nodes (recordPending).
func (c *Controller) record(ctx context.Context, s *snapshot) error {
	for _, m := range s.missing {
		if _, err := c.create(ctx, m.CIDR, subnetplan.Assignee{Node: m.Node}); err != nil && !errors.Is(err, errTaken) {
			return err
		}
		s.again()
		if m.Node != "" {
			c.Nodes.Add(source.ForName(m.Node))
		}
	}
	for _, o := range s.orphans {
		if len(o.Subnets) == 0 {
			continue
		}
		recorded := !slices.ContainsFunc(o.Subnets, func(sub subnetplan.Subnet) bool { return sub.OrphanedSince.IsZero() })
		if !recorded {
			switch present, err := c.exists(ctx, o.Node); {
			case err != nil:
				return err
			case present:
				continue
			}
		}
		for _, sub := range o.Subnets {
			want := c.orphanStatus(o.OrphanedSubnets, sub, s.now)
			if equality.Semantic.DeepEqual(sub.Object.Status, want) {
				continue
			}
			switch err := c.updateStatus(ctx, sub, want); {
			case err == nil && !recorded:
				klog.FromContext(ctx).Info("A subnet has no node and is recorded as orphaned", "node", o.Node, "subnet", sub.CIDR, "reserved", len(o.Reserved))
			case err != nil && !errors.Is(err, ErrChanged):
				return err
			}
			s.again()
		}
	}
	return c.recordPending(ctx, s)
}

// pendingAfter is the age at which a claim gets conditions with reason Pending if its subnet is not in the CiliumNode of its
// node. Usually the subnet is assigned earlier, and the claim gets its conditions with one write.
const pendingAfter = 10 * time.Second

// recordPending sets the conditions of the claims that are pendingAfter old, have no condition Assigned, and whose subnets are
// not in the CiliumNodes of their nodes, although these nodes exist. It enqueues a node if the conditions of its NodeSubnets
// show an overlap that has ended, or do not show one that exists.
func (c *Controller) recordPending(ctx context.Context, s *snapshot) error {
	for _, sub := range s.list {
		has, pooled := s.subnets[sub.Node]
		switch {
		case slices.Contains(has, sub.CIDR):
			ready := meta.FindStatusCondition(sub.Object.Status.Conditions, v1alpha1.ConditionReady)
			if ready != nil && s.overlaps[sub.Node] != (ready.Reason == v1alpha1.ReasonSubnetOverlap) {
				c.Nodes.Add(source.ForName(sub.Node))
			}
			continue
		case !pooled && s.nodes[sub.Node] == nil, meta.FindStatusCondition(sub.Object.Status.Conditions, v1alpha1.ConditionAssigned) != nil:
			// record has handled the subnet, or its conditions exist already.
			continue
		}
		if due := sub.Object.CreationTimestamp.Add(pendingAfter); s.now.Before(due) {
			s.soon(due)
			continue
		}
		want := sub.Object.Status.DeepCopy()
		c.setConditionsOf(want, sub, metav1.ConditionFalse, v1alpha1.ReasonPending, fmt.Sprintf("the subnet is claimed for node %s, but is not in its CiliumNode yet; the controller adds it there after the Cilium agent has created the CiliumNode; if the subnet stays pending, check the events of Node %[1]s", sub.Node))
		if err := c.updateStatus(ctx, sub, *want); err != nil && !errors.Is(err, ErrChanged) {
			return err
		}
	}
	return nil
}

// orphanStatus returns the status of the NodeSubnet s of an orphan: its node was observed to be gone, or it never had a node.
func (c *Controller) orphanStatus(o subnetplan.OrphanedSubnets, s subnetplan.Subnet, now time.Time) v1alpha1.NodeSubnetStatus {
	want := s.Object.Status.DeepCopy()
	if want.OrphanedSince == nil || want.GracePeriodEnd == nil {
		since := metav1.NewTime(now.Truncate(time.Second))
		end := metav1.NewTime(since.Add(c.Rules.GracePeriod))
		want.OrphanedSince, want.GracePeriodEnd = &since, &end
	}
	end := want.GracePeriodEnd
	message, other, returns := "no node has had the subnet yet", "a node", ""
	if s.Node != "" {
		message, other = fmt.Sprintf("node %s is gone; the subnet is orphaned", s.Node), "another node"
		returns = fmt.Sprintf("until the subnet is released or inherited, a new node %s gets it at once; ", s.Node)
	}
	at := end.UTC().Format(time.RFC3339)
	if c.waitsForMigration(o) {
		message += fmt.Sprintf("; %s that has a subnet and is ready and suitable (zone, region, taints) inherits it after 10s at most, because the failover policy of an IP in it is Migrate", other)
	}
	switch {
	case s.Node == "" && c.Rules.Policy != subnetplan.Inherit:
		message += "; it is released as soon as no FixedIP reserves an IP in it"
	case c.Rules.Policy == subnetplan.Free:
		message += fmt.Sprintf("; at %s the FixedIPs that reserve IPs in it for this node are deleted, and the subnet is released", at)
	case c.Rules.Policy == subnetplan.Inherit && !c.waitsForMigration(o):
		message += fmt.Sprintf("; from %s on, %s may inherit the subnet if a FixedIP reserves an IP in it; otherwise the subnet is released", at, other)
	default:
		message += fmt.Sprintf("; at %s it is released if no FixedIP reserves an IP in it", at)
	}
	if c.FromNode {
		message += "; it waits for a node to which Kubernetes assigns it (spec.podCIDRs of the Node)"
	} else {
		message += "; " + returns + "if a FixedIP reserves an IP in it, the node that spec.successor names gets it at once"
	}
	c.setConditionsOf(want, s, metav1.ConditionFalse, v1alpha1.ReasonOrphaned, message)
	return *want
}

// setConditions writes the condition SubnetAvailable of FixedIPs. It records an event on each FixedIP whose condition
// becomes False, or stays False with another reason.
func (c *Controller) setConditions(ctx context.Context, s *snapshot) error {
	byName := func(a, b client.ObjectKey) int { return strings.Compare(a.String(), b.String()) }
	for _, key := range slices.SortedFunc(maps.Keys(s.available), byName) {
		record, want := s.records[key], s.available[key]
		have := meta.FindStatusCondition(record.Status.Conditions, v1alpha1.ConditionSubnetAvailable)
		same := have != nil && have.Status == want.Status && have.Reason == want.Reason
		if same && have.Message == want.Message {
			continue
		}
		// SetStatusCondition does not change the transition time if only the reason changes. The transition time of this
		// condition is the time at which the status or the reason changed.
		want.LastTransitionTime, want.ObservedGeneration = metav1.NewTime(s.now), record.Generation
		if same {
			want.LastTransitionTime = have.LastTransitionTime
		}
		record = record.DeepCopy()
		meta.RemoveStatusCondition(&record.Status.Conditions, v1alpha1.ConditionSubnetAvailable)
		meta.SetStatusCondition(&record.Status.Conditions, want)
		err := c.API.Status().Update(ctx, record)
		switch {
		case apierrors.IsConflict(err), apierrors.IsNotFound(err):
			s.again()
			continue
		case err != nil:
			return fmt.Errorf("write condition %s of FixedIP %s: %w", v1alpha1.ConditionSubnetAvailable, key, err)
		case want.Status == metav1.ConditionFalse && !same:
			c.Events.Eventf(record, nil, corev1.EventTypeWarning, want.Reason, "LookForSubnet", "%s", want.Message)
		}
		// releaseExpired may delete the FixedIP in this pass, with the new version as a precondition.
		s.records[key] = record
	}
	return nil
}

// chooseInheritors chooses the existing nodes that inherit orphaned subnets in this pass. If Kubernetes assigns the subnets,
// no node inherits a subnet.
func (c *Controller) chooseInheritors(ctx context.Context, s *snapshot) error {
	for i := range s.orphans {
		o := &s.orphans[i]
		if c.FromNode {
			continue
		}
		name, at := c.Rules.PickExistingNode(o.OrphanedSubnets, s.candidates, s.now)
		if name != "" && !o.Chosen(*s.candidate(name)) && !o.AllNominatedTo(name) {
			var err error
			if o.Volumes, err = c.limitingVolumes(ctx, o.OrphanedSubnets); err != nil {
				s.unread = errors.Join(s.unread, fmt.Errorf("choose the node that inherits the subnets of node %s: %w", o.Node, err))
				continue
			}
			if v := o.Excludes(*s.candidate(name)); v != nil {
				excluded := name
				if name, at = c.Rules.PickExistingNode(o.OrphanedSubnets, s.candidates, s.now); name == "" {
					s.explainExcluded(o.OrphanedSubnets, excluded, v)
				}
			}
		}
		s.soon(at)
		if o.inheritor = name; name != "" {
			// Count the subnets, so that another node that is equally suitable inherits the next orphan.
			s.candidate(name).Subnets += len(o.Needed(*s.candidate(name)))
		}
	}
	return nil
}

// inheritOrExpire changes the NodeSubnets of lost nodes so that they name the existing nodes that inherit them;
// reconcileNode then assigns the subnets to these nodes. If no node inherits the subnets now, inheritOrExpire deletes the
// FixedIPs whose reservations in them have expired under policy Free.
func (c *Controller) inheritOrExpire(ctx context.Context, s *snapshot) error {
	for _, o := range s.orphans {
		if o.inheritor == "" {
			if err := c.releaseExpired(ctx, o.OrphanedSubnets, s); err != nil {
				return err
			}
			continue
		}
		s.again()
		n, ok := c.Ledger.Node(o.inheritor)
		if !ok {
			continue
		}
		switch _, err := c.Take(ctx, o.OrphanedSubnets, *s.candidate(o.inheritor), assignee(n, s.nodes[o.inheritor])); {
		case err == nil:
			c.Nodes.Add(source.ForName(o.inheritor))
		case !errors.Is(err, ErrChanged):
			return fmt.Errorf("assign orphaned subnets of node %s to node %s: %w", o.Node, o.inheritor, err)
		}
	}
	return nil
}

// releaseExpired deletes the FixedIPs whose reservations in the orphaned subnets o have expired under policy Free.
func (c *Controller) releaseExpired(ctx context.Context, o subnetplan.OrphanedSubnets, s *snapshot) error {
	expired, at := c.Rules.ExpiredReservations(o, s.now)
	s.soon(at)
	if len(expired) == 0 {
		return nil
	}
	// A deletion cannot be undone, so check at the API server that the node is gone.
	if present, err := c.exists(ctx, o.Node); err != nil || present {
		return err
	}
	for _, k := range expired {
		record := s.records[k.Record]
		if record.DeletionTimestamp != nil {
			continue
		}
		err := c.API.Delete(ctx, record, client.Preconditions{UID: &record.UID, ResourceVersion: &record.ResourceVersion})
		switch {
		case apierrors.IsNotFound(err):
			// The FixedIP was deleted already, for example because its other address has expired too.
		case apierrors.IsConflict(err):
			// The FixedIP was written meanwhile.
			s.again()
		case err != nil:
			return fmt.Errorf("delete FixedIP %s: %w", k.Record, err)
		default:
			c.Events.Eventf(record, nil, corev1.EventTypeNormal, "ReservationExpired", "DeleteRecord", "The FixedIP is deleted and its IPs (%s) are released, because node %s has been gone for %v or longer and subnets.orphanedPolicy is %s; the next pod gets other IPs", strings.Join(record.Spec.IPs, ", "), o.Node, c.Rules.GracePeriod, subnetplan.Free)
		}
	}
	return nil
}

// release deletes the orphaned NodeSubnets that are due (Rules.Releasable) if no FixedIP reserves an address in their
// subnets and no pool has an entry there. The CIDRs are free again after that.
func (c *Controller) release(ctx context.Context, s *snapshot) error {
	var due []subnetplan.OrphanedSubnets
	var prefixes []netip.Prefix
	for _, o := range s.orphans {
		ok, at := c.Rules.Releasable(o.OrphanedSubnets, s.now)
		if cidrs := subnetplan.CIDRs(o.Subnets); ok && !c.Ledger.HasCarriedAddresses(cidrs) {
			due, prefixes = append(due, o.OrphanedSubnets), append(prefixes, cidrs...)
		}
		s.soon(at)
	}
	if len(due) == 0 {
		return nil
	}
	if next := c.lastRelease.Add(releaseInterval); s.now.Before(next) {
		s.soon(next)
		return nil
	}
	c.lastRelease = s.now
	needed, err := c.needed(ctx, prefixes)
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
			// The deletion requires the version in the snapshot. If the node has joined again since then, the NodeSubnet has a
			// newer version.
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

// needed returns the set of IPs that must not be released, as the API server has them. These are the addresses in the
// given subnets that a FixedIP reserves or for which a pool has an entry, and the subnets of all CiliumNodes.
func (c *Controller) needed(ctx context.Context, in []netip.Prefix) (*netipx.IPSet, error) {
	reserved, err := c.reservedLive(ctx, in)
	if err != nil {
		return nil, err
	}
	var needed netipx.IPSetBuilder
	for _, k := range reserved {
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

// unavailableIndex is the index of the FixedIPs whose condition SubnetAvailable is False. Key: "true".
const unavailableIndex = "subnetUnavailable"

// unavailable is the index function of unavailableIndex.
func unavailable(obj client.Object) []string {
	if meta.IsStatusConditionFalse(obj.(*v1alpha1.FixedIP).Status.Conditions, v1alpha1.ConditionSubnetAvailable) {
		return []string{"true"}
	}
	return nil
}
