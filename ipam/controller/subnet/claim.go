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
	"time"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/nodeutil"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reservation"
	"fixedip.io/fixedip/ipam/core/subnetplan"
	"fixedip.io/fixedip/ipam/store/fixedips"
)

const (
	// claimTries is the maximum number of times that one call of claim tries to claim new subnets for a node.
	claimTries = 8
	// recentFor is the time after an attempt to claim a subnet during which this process does not choose that subnet again.
	// After that time the caches show the NodeSubnet, if it exists.
	recentFor = 10 * time.Second
)

// problem is an error that an administrator has to resolve. reason is the reason of the event that reports the error.
type problem struct{ reason, message string }

func (p *problem) Error() string { return p.message }

const (
	// deleteNodeSubnet is the help for an overlap of two NodeSubnets whose subnets are from the cluster pools.
	deleteNodeSubnet = "delete the one of the two NodeSubnets whose subnet no CiliumNode has"
	// registerAgain is the help for an overlap of a subnet that Kubernetes assigned. spec.podCIDRs of a Node cannot be
	// changed.
	registerAgain = "drain the node that should get another subnet, and delete its Node and its CiliumNode so that it registers again"
)

// overlap returns the error for a subnet that cannot be assigned because it overlaps another NodeSubnet.
func overlap(s, other subnetplan.Subnet, help string) error {
	by := "NodeSubnet " + address.SubnetName(other.CIDR)
	if other.Node != "" {
		by += " of node " + other.Node
	}
	return &problem{"SubnetOverlap", fmt.Sprintf("subnet %s is not assigned to node %s, because it overlaps %s; %s", s.CIDR, s.Node, by, help)}
}

// claim binds the NodeSubnets in own to the node of h, and creates a NodeSubnet for each family in lacking. It then compares
// all of them with the NodeSubnets at the API server. If a new NodeSubnet overlaps another one, claim deletes the new one
// and tries another CIDR. known are the NodeSubnets that the caches show. claims contains own and the new NodeSubnets, and
// exhausted the families without a free subnet. The error matches ErrChanged if another controller was faster, and is a
// *problem if one of own overlaps another NodeSubnet.
func (c *Controller) claim(ctx context.Context, n pool.NodePool, h subnetplan.Assignee, own []subnetplan.Subnet, lacking []address.Family, known []subnetplan.Subnet) (claims []subnetplan.Subnet, exhausted []address.Family, err error) {
	if own, err = c.bind(ctx, own, h); err != nil {
		return nil, nil, err
	}
	for range claimTries {
		fresh, exhausted, err := c.carve(ctx, lacking, h, known)
		if err != nil {
			return nil, nil, err
		}
		if known, err = c.listLive(ctx); err != nil {
			return nil, nil, err
		}
		for _, s := range own {
			if now := subnetplan.Find(known, s.CIDR); now.Object == nil || now.Object.UID != s.Object.UID || now.Node != s.Node {
				return nil, nil, fmt.Errorf("NodeSubnet %s of node %s: %w", s.Object.Name, s.Node, ErrChanged)
			}
			if clash, found := subnetplan.Clash(s, known, false); found {
				return nil, nil, overlap(s, clash, deleteNodeSubnet)
			}
		}
		for _, s := range fresh {
			clash, found := subnetplan.Clash(s, known, true)
			if !found {
				own = append(own, s)
				lacking = slices.DeleteFunc(lacking, func(f address.Family) bool { return f == s.Family() })
				continue
			}
			if err := c.delete(ctx, s); err != nil {
				return nil, nil, err
			}
			if clash.Node == n.Name {
				return nil, nil, fmt.Errorf("another claim has given subnet %s to node %s: %w", clash.CIDR, n.Name, ErrChanged)
			}
		}
		if len(lacking) == len(exhausted) {
			return own, exhausted, nil
		}
	}
	return nil, nil, fmt.Errorf("claim a subnet for node %s: %d tries conflicted with other claims: %w", n.Name, claimTries, ErrChanged)
}

// bind updates NodeSubnets so that they name the node and the CiliumNode of h. It returns their new versions.
func (c *Controller) bind(ctx context.Context, own []subnetplan.Subnet, h subnetplan.Assignee) (bound []subnetplan.Subnet, err error) {
	for _, s := range own {
		if s.Node != h.Node || s.Object.Spec.CiliumNodeUID != h.CiliumNodeUID || s.Object.Spec.NodeUID != h.NodeUID {
			if s, err = c.assign(ctx, s, h); err != nil {
				return nil, err
			}
		}
		bound = append(bound, s)
	}
	return bound, nil
}

// carve creates a NodeSubnet for a free subnet in each of the families. A free subnet contains no reserved address,
// and overlaps neither a NodeSubnet nor a subnet of a CiliumNode. If another controller creates the NodeSubnet first,
// neither fresh nor exhausted contains the family.
func (c *Controller) carve(ctx context.Context, families []address.Family, h subnetplan.Assignee, known []subnetplan.Subnet) (fresh []subnetplan.Subnet, exhausted []address.Family, err error) {
	if len(families) == 0 {
		return nil, nil, nil
	}
	taken := address.Union(slices.Concat(subnetplan.CIDRs(known), c.Ledger.Subnets()))
	records, err := fixedips.Read(ctx, c.Cached, c.Ledger.ReservationsWithoutSubnet())
	if err != nil {
		return nil, nil, err
	}
	missing := subnetplan.Missing(c.Rules.Pools, taken, reservation.Of(records...), func(string) bool { return true })
	taken = address.Add(taken, subnetplan.CIDRs(missing))
	for _, f := range families {
		cidr, ok := c.choose(f, taken)
		if !ok {
			exhausted = append(exhausted, f)
			continue
		}
		switch s, err := c.create(ctx, cidr, h); {
		case err == nil:
			fresh = append(fresh, s)
		case !errors.Is(err, errTaken):
			return nil, nil, err
		}
	}
	return fresh, exhausted, nil
}

// choose returns a subnet of a family that contains no taken address, that overlaps no subnet that this process has recently
// tried to claim, and in which no pool has an allocatable entry. It returns false if there is none.
func (c *Controller) choose(f address.Family, taken *netipx.IPSet) (netip.Prefix, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.recent == nil {
		c.recent = map[netip.Prefix]time.Time{}
	}
	maps.DeleteFunc(c.recent, func(_ netip.Prefix, at time.Time) bool { return c.Clock.Since(at) > recentFor })
	taken = address.Add(taken, slices.Collect(maps.Keys(c.recent)))
	for {
		cidr, ok := address.Carve(c.Rules.Pools, f, taken)
		if ok && c.Ledger.HasCarriedAddresses([]netip.Prefix{cidr}) {
			// The pool of a node that does not have this subnet still has an entry for an address in it.
			taken = address.Add(taken, []netip.Prefix{cidr})
			continue
		}
		if ok {
			c.recent[cidr] = c.Clock.Now()
		}
		return cidr, ok
	}
}

// claimPodCIDRs claims the subnets that Kubernetes assigned to a node and that its CiliumNode lacks. had is true if one of the
// subnets already had a NodeSubnet. If the Node was created again with other subnets, older NodeSubnets may still name the
// node. They stay unless they overlap a claim.
//
// If the NodeSubnet of an assigned subnet names another node, claimPodCIDRs assigns it to this node if the other node has lost
// the subnet (see lost). Otherwise claimPodCIDRs deletes nothing and returns a *problem.
//
// If a claim overlaps another NodeSubnet, claimPodCIDRs deletes that NodeSubnet if its node has lost its subnet, and returns an
// error that matches ErrChanged. Otherwise claimPodCIDRs deletes the claim and returns a *problem. An administrator has to
// resolve a *problem.
func (c *Controller) claimPodCIDRs(ctx context.Context, n pool.NodePool, node *corev1.Node, h subnetplan.Assignee, all []subnetplan.Subnet) (claims []subnetplan.Subnet, had bool, err error) {
	if node == nil {
		return nil, false, nil
	}
	assigned, err := nodeutil.PodCIDRs(node)
	if err != nil {
		return nil, false, &problem{"MalformedSubnet", err.Error() + "; the node gets no further subnet before its Node is created again with valid CIDRs"}
	}
	if len(assigned) == 0 && len(n.PodCIDRs) == 0 {
		return nil, false, &problem{"SubnetMissing", fmt.Sprintf("spec.podCIDRs of node %s is empty, so the node gets no subnet; check that Kubernetes assigns CIDRs to nodes (--allocate-node-cidrs of kube-controller-manager) and that its --cluster-cidr has a free one", n.Name)}
	}
	for _, cidr := range assigned {
		if slices.Contains(n.Subnets, cidr) {
			continue
		}
		s := subnetplan.Find(all, cidr)
		if s.Object == nil {
			if s, err = c.create(ctx, cidr, h); err != nil {
				return nil, false, err
			}
		} else {
			had = true
			if s.Node != n.Name {
				switch free, err := c.lost(ctx, s); {
				case err != nil:
					return nil, false, err
				case !free:
					return nil, false, overlap(subnetplan.Subnet{CIDR: cidr, Node: n.Name}, s, registerAgain)
				}
			}
		}
		claims = append(claims, s)
	}
	if len(claims) == 0 {
		return nil, false, nil
	}
	if claims, err = c.bind(ctx, claims, h); err != nil {
		return nil, false, err
	}
	if all, err = c.listLive(ctx); err != nil {
		return nil, false, err
	}
	for _, s := range claims {
		clash, found := subnetplan.Clash(s, all, false)
		if !found {
			continue
		}
		free, err := c.lost(ctx, clash)
		switch {
		case err != nil:
			return nil, false, err
		case free:
			// Kubernetes assigned the subnet to this node. Delete the other NodeSubnet: its node was deleted, or was created
			// again with other subnets.
			return nil, false, errors.Join(c.delete(ctx, clash), ErrChanged)
		}
		return nil, false, errors.Join(c.delete(ctx, s), overlap(s, clash, registerAgain))
	}
	return claims, had, nil
}

var (
	// errTaken means that the NodeSubnet to create exists already.
	errTaken = errors.New("the subnet has been claimed already")
	// ErrChanged means that a NodeSubnet was written or deleted since it was read. The next try may succeed.
	ErrChanged = errors.New("the NodeSubnet has been changed or deleted")
)

// Every write of a NodeSubnet has a precondition: a write that was decided from an outdated version fails.

// List returns all NodeSubnets as the caches show them, sorted by name if the events of NodeSubnets are followed. Neither the list
// nor the objects must be changed.
func (c *Controller) List(ctx context.Context) ([]subnetplan.Subnet, error) {
	if list, ok := c.listed.get(); ok {
		return list, nil
	}
	return listFrom(ctx, c.Cached, client.UnsafeDisableDeepCopy)
}

// Count returns the number of orphaned subnets with reserved addresses, and the CIDRs of all NodeSubnets, as the
// caches show them. If the NodeSubnets cannot be listed, it logs the error and returns 0 and nil.
func (c *Controller) Count(ctx context.Context) (orphaned int, claimed []netip.Prefix) {
	list, err := c.List(ctx)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to list the NodeSubnets; the metrics of subnets do not count them in this scrape")
	}
	for _, s := range list {
		if !s.OrphanedSince.IsZero() && len(c.Ledger.ReservationsIn(s.CIDR)) > 0 {
			orphaned++
		}
	}
	return orphaned, subnetplan.CIDRs(list)
}

func listFrom(ctx context.Context, from client.Reader, opts ...client.ListOption) ([]subnetplan.Subnet, error) {
	var list v1alpha1.NodeSubnetList
	if err := from.List(ctx, &list, opts...); err != nil {
		return nil, fmt.Errorf("list NodeSubnets: %w", err)
	}
	return subnetplan.FromNodeSubnets(list.Items), nil
}

// create claims a subnet for a node: it creates the NodeSubnet. The CIDR determines the name of the NodeSubnet, so
// only one controller can create it; the others get errTaken.
func (c *Controller) create(ctx context.Context, cidr netip.Prefix, h subnetplan.Assignee) (subnetplan.Subnet, error) {
	ns := &v1alpha1.NodeSubnet{
		ObjectMeta: metav1.ObjectMeta{Name: address.SubnetName(cidr)},
		Spec:       v1alpha1.NodeSubnetSpec{CIDR: cidr.String(), NodeName: h.Node, NodeUID: h.NodeUID, CiliumNodeUID: h.CiliumNodeUID},
	}
	switch err := c.API.Create(ctx, ns); {
	case apierrors.IsAlreadyExists(err):
		return subnetplan.Subnet{}, fmt.Errorf("NodeSubnet %s: %w", ns.Name, errTaken)
	case err != nil:
		return subnetplan.Subnet{}, fmt.Errorf("create NodeSubnet %s: %w", ns.Name, err)
	}
	s, _ := subnetplan.FromNodeSubnet(ns)
	return s, nil
}

// assign changes a NodeSubnet so that it names the node of h. If the NodeSubnet named another node, assign records that node
// as the previous one and clears the successor. If the NodeSubnet already names the node of h, with the same UIDs, assign
// writes a new version nevertheless, in the status, so that the controller that created the NodeSubnet cannot delete it. The
// error matches ErrChanged if the NodeSubnet was written or deleted since it was read.
func (c *Controller) assign(ctx context.Context, s subnetplan.Subnet, h subnetplan.Assignee) (subnetplan.Subnet, error) {
	ns := s.Object.DeepCopy()
	if ns.Spec.NodeName != h.Node {
		ns.Spec.PreviousNodeName, ns.Spec.Successor = ns.Spec.NodeName, ""
	}
	ns.Spec.NodeName, ns.Spec.NodeUID, ns.Spec.CiliumNodeUID = h.Node, h.NodeUID, h.CiliumNodeUID
	// Both kinds of update carry the resourceVersion that was read.
	update := c.API.Update
	if ns.Spec == s.Object.Spec {
		ns.Status.Resumed++
		update = func(ctx context.Context, o client.Object, _ ...client.UpdateOption) error {
			return c.API.Status().Update(ctx, o)
		}
	}
	if err := update(ctx, ns); err != nil {
		return subnetplan.Subnet{}, fmt.Errorf("assign NodeSubnet %s to node %s: %w", ns.Name, h.Node, changed(err))
	}
	s, _ = subnetplan.FromNodeSubnet(ns)
	return s, nil
}

// updateStatus writes the status of a NodeSubnet. The error matches ErrChanged if the NodeSubnet was written or deleted
// since it was read.
func (c *Controller) updateStatus(ctx context.Context, s subnetplan.Subnet, status v1alpha1.NodeSubnetStatus) error {
	ns := s.Object.DeepCopy()
	ns.Status = status
	if err := c.API.Status().Update(ctx, ns); err != nil {
		return fmt.Errorf("write the status of NodeSubnet %s: %w", ns.Name, changed(err))
	}
	return nil
}

// delete deletes the NodeSubnet of a subnet, and allows choose to return the subnet again. It returns nil if the NodeSubnet
// was deleted already. The error matches ErrChanged if the NodeSubnet was written since it was read.
func (c *Controller) delete(ctx context.Context, s subnetplan.Subnet) error {
	err := c.API.Delete(ctx, s.Object, client.Preconditions{UID: &s.Object.UID, ResourceVersion: &s.Object.ResourceVersion})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete NodeSubnet %s: %w", s.Object.Name, changed(err))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.recent, s.CIDR)
	return nil
}

// changed returns an error that matches ErrChanged if err is a conflict or a missing object, and err otherwise.
func changed(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return fmt.Errorf("%w: %w", ErrChanged, err)
	}
	return err
}
