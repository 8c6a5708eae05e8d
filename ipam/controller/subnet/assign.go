// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/nodeutil"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reservation"
	"fixedip.io/fixedip/ipam/core/subnetplan"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/ipam/store/fixedips"
)

// Assignment describes the subnets that were assigned to a node.
type Assignment struct {
	// Subnets are the subnets that were added to the CiliumNode.
	Subnets []netip.Prefix
	// Reserved is the number of addresses that FixedIPs reserve in Subnets.
	Reserved int
	Origin   subnetplan.Origin
	// From is a node that had some of Subnets before; empty if there was none, the node is not known, or Kubernetes assigns the
	// subnets.
	From string
	// Exhausted are the families for which the cluster pools have no free subnet.
	Exhausted []address.Family
}

func assignee(n pool.NodePool, node *corev1.Node) subnetplan.Assignee {
	h := subnetplan.Assignee{Node: n.Name, CiliumNodeUID: types.UID(n.UID)}
	if node != nil {
		h.NodeUID = node.UID
	}
	return h
}

// Assign assigns to a node the subnets that it lacks: those of the NodeSubnets that name it, orphaned subnets that it
// inherits, and new ones; or, if FromNode is true, those in spec.podCIDRs of its Node. It also claims the subnets that the
// CiliumNode has already. node is its Node; nil: there is no Node yet. If another write was faster, the error matches
// ErrChanged of this package or of ciliumpool, or errTaken, and the next try may succeed. If the CiliumNode was deleted, the
// error matches ciliumpool.ErrGone. If the error is a *problem, an administrator has to resolve it.
func (c *Controller) Assign(ctx context.Context, n pool.NodePool, node *corev1.Node) (given Assignment, err error) {
	list, err := c.List(ctx)
	if err != nil {
		return given, err
	}
	h := assignee(n, node)
	if err := c.claimExisting(ctx, n, h, list); err != nil {
		return given, err
	}
	var claims []subnetplan.Subnet
	var had bool
	if c.FromNode {
		given.Origin = subnetplan.FromNodeSpec
		claims, had, err = c.claimPodCIDRs(ctx, n, node, h, list)
	} else {
		claims, err = c.claimLacking(ctx, n, node, h, list, &given)
		had = given.Origin != subnetplan.FromClusterPool
	}
	if err != nil || len(claims) == 0 {
		return given, err
	}
	return c.publish(ctx, n, node, claims, given, had)
}

// claimLacking returns the claims of a node to publish: its claims that are not published yet, those of orphaned
// subnets that it inherits, and a new one for each family that it still lacks. It sets Origin, From and Exhausted in
// given.
func (c *Controller) claimLacking(ctx context.Context, n pool.NodePool, node *corev1.Node, h subnetplan.Assignee, list []subnetplan.Subnet, given *Assignment) ([]subnetplan.Subnet, error) {
	claims, err := c.resume(ctx, n, h, list)
	if err != nil {
		return nil, err
	}
	orphans, err := c.Lost(ctx, list)
	if err != nil {
		return nil, err
	}
	given.Origin = subnetplan.FromClusterPool
	if len(claims) > 0 {
		given.Origin, given.From = subnetplan.Restored, n.Name
		if i := slices.IndexFunc(claims, justInherited); i >= 0 {
			given.Origin, given.From = inheritedBy(n), claims[i].Previous
		}
	}
	inheritor := candidate(n.Name, len(n.Subnets)+len(claims), node)
	if orphan, ok := c.orphanForNewNode(ctx, inheritor, orphans); ok {
		taken, err := c.Take(ctx, orphan, inheritor, h)
		if err != nil {
			return nil, err
		}
		if len(taken) > 0 {
			claims = append(claims, taken...)
			given.Origin, given.From = inheritedBy(n), orphan.Node
		}
	}
	lacking := subnetplan.Lacking(c.Rules.Pools, slices.Concat(n.Subnets, subnetplan.CIDRs(claims)))
	if len(claims) == 0 && len(lacking) == 0 {
		return nil, nil
	}
	claims, given.Exhausted, err = c.claim(ctx, n, h, claims, lacking, list)
	return claims, err
}

// inheritedBy returns the origin of subnets that a node inherits.
func inheritedBy(n pool.NodePool) subnetplan.Origin {
	if len(n.Subnets) > 0 {
		return subnetplan.ByExistingNode
	}
	return subnetplan.ByNewNode
}

// justInherited reports whether the node of a NodeSubnet has inherited the subnet, and its status does not show that yet.
func justInherited(s subnetplan.Subnet) bool {
	assigned := meta.FindStatusCondition(s.Object.Status.Conditions, v1alpha1.ConditionAssigned)
	return s.Previous != "" && (assigned == nil || assigned.Reason == v1alpha1.ReasonPending || assigned.ObservedGeneration < s.Object.Generation)
}

// resume returns the existing claims of a node whose subnets its CiliumNode lacks. A new claim that was never published
// belongs to a controller that stopped, or another controller is about to publish it. resume takes such a claim over if the
// node has neither a subnet nor another claim of that family. It deletes the claim if the node has a subnet of that family;
// if the node has only another claim, a later call deletes it. The other controller cannot publish the deleted claim: its
// write requires the podCIDRs that it has read, and the CiliumNode has got another subnet since then.
func (c *Controller) resume(ctx context.Context, n pool.NodePool, h subnetplan.Assignee, list []subnetplan.Subnet) (found []subnetplan.Subnet, err error) {
	var begun []subnetplan.Subnet
	for _, s := range list {
		switch {
		case s.Node != n.Name || slices.Contains(n.Subnets, s.CIDR):
		case established(s.Object):
			found = append(found, s)
		default:
			begun = append(begun, s)
		}
	}
	for _, s := range begun {
		switch {
		case n.HasFamily(s.Family()):
			if err := c.delete(ctx, s); err != nil {
				return nil, err
			}
		case slices.ContainsFunc(found, func(o subnetplan.Subnet) bool { return o.Family() == s.Family() }):
			// The claim in found is published first. A later call then deletes this one.
		default:
			if s, err = c.assign(ctx, s, h); err != nil {
				return nil, err
			}
			found = append(found, s)
		}
	}
	return found, nil
}

// established reports whether a NodeSubnet is more than a new claim: its node has had the subnet or has inherited it, or the
// controller created the NodeSubnet for reserved addresses.
func established(ns *v1alpha1.NodeSubnet) bool {
	assigned := meta.FindStatusCondition(ns.Status.Conditions, v1alpha1.ConditionAssigned)
	return ns.Spec.PreviousNodeName != "" || ns.Spec.CiliumNodeUID == "" || assigned != nil && assigned.Reason != v1alpha1.ReasonPending
}

// candidate returns a node as a candidate to inherit orphaned subnets. subnets is the number of its subnets; node may
// be nil.
func candidate(name string, subnets int, node *corev1.Node) subnetplan.CandidateNode {
	h := subnetplan.CandidateNode{Name: name, Subnets: subnets}
	if node != nil {
		h.ReplacesNode, h.Ready, h.Joined = node.Labels[replacesNodeLabel], nodeutil.IsSchedulable(node), node.CreationTimestamp.Time
		h.Constraints, h.Labels = subnetplan.ConstraintsOf(node), node.Labels
	}
	return h
}

// Lost returns the orphaned subnets in list, grouped as by subnetplan.Orphans: those whose nodes the caches do not show, and
// those that never had a node.
func (c *Controller) Lost(ctx context.Context, list []subnetplan.Subnet) ([]subnetplan.OrphanedSubnets, error) {
	var lost []netip.Prefix
	// gone contains the nodes that NodeSubnets name and that are gone. Key: the name. It does not contain the other nodes: Lost
	// runs for each node at a start, and nearly all nodes exist.
	gone := map[string]bool{"": true}
	for _, s := range list {
		if !gone[s.Node] {
			present, err := c.shown(ctx, s.Node)
			if err != nil {
				return nil, err
			}
			if present {
				continue
			}
			gone[s.Node] = true
		}
		lost = append(lost, s.CIDR)
	}
	if len(lost) == 0 {
		return nil, nil
	}
	records, err := fixedips.Read(ctx, c.Cached, c.Ledger.ReservationsIn(lost...))
	if err != nil {
		return nil, err
	}
	reserved := subnetplan.ReservedIn(lost, reservation.Of(records...))
	orphans := subnetplan.Orphans(list, reserved, func(node string) bool { return gone[node] })
	for i := range orphans {
		if orphans[i].Waiting, err = c.waiting(ctx, orphans[i]); err != nil {
			return nil, err
		}
	}
	return orphans, nil
}

// shown reports whether the caches have a Node or a CiliumNode with the name.
func (c *Controller) shown(ctx context.Context, name string) (bool, error) {
	if _, ok := c.Ledger.Node(name); ok {
		return true, nil
	}
	node, err := index.Node(ctx, c.Cached, name)
	return node != nil, err
}

// exists reports whether the API server has a Node or a CiliumNode with the name. If one of them exists, pods of the node may
// run.
func (c *Controller) exists(ctx context.Context, name string) (bool, error) {
	for _, obj := range []client.Object{&corev1.Node{}, &ciliumv2.CiliumNode{}} {
		if name == "" {
			break
		}
		switch err := c.API.Get(ctx, client.ObjectKey{Name: name}, obj); {
		case err == nil:
			return true, nil
		case !apierrors.IsNotFound(err):
			return false, fmt.Errorf("read the Node or the CiliumNode of node %s: %w", name, err)
		}
	}
	return false, nil
}

// Take makes a node inherit those of the orphaned subnets o that are needed. inheritor and h describe that node. If the node of
// o still exists, Take changes nothing and returns no subnets. If another controller changed one of the NodeSubnets, the error
// matches ErrChanged; the NodeSubnets that Take changed before still name the node of h.
func (c *Controller) Take(ctx context.Context, o subnetplan.OrphanedSubnets, inheritor subnetplan.CandidateNode, h subnetplan.Assignee) (taken []subnetplan.Subnet, err error) {
	// The NodeSubnets were read before this check: if another controller has written one since then, bind fails.
	if present, err := c.exists(ctx, o.Node); err != nil || present {
		return nil, err
	}
	return c.bind(ctx, o.Needed(inheritor), h)
}

// claimExisting claims the subnets that a CiliumNode has and that no NodeSubnet claims for it: the CiliumNode is older
// than its NodeSubnets, or a user wrote the subnet or deleted its NodeSubnet. It changes the NodeSubnet of another node only
// if that node no longer has the subnet (lost).
func (c *Controller) claimExisting(ctx context.Context, n pool.NodePool, h subnetplan.Assignee, list []subnetplan.Subnet) error {
	for _, cidr := range n.Subnets {
		s := subnetplan.Find(list, cidr)
		var err error
		if s.Object == nil {
			_, err = c.create(ctx, cidr, h)
		} else if s.Node != n.Name || s.Object.Spec.CiliumNodeUID != h.CiliumNodeUID {
			// If both nodes have the subnet, package nodepool reports the overlap, and no address of the subnet is claimed.
			free := s.Node == n.Name
			if !free {
				free, err = c.lost(ctx, s)
			}
			if free {
				_, err = c.assign(ctx, s, h)
			}
		}
		if err != nil && !errors.Is(err, errTaken) && !errors.Is(err, ErrChanged) {
			return err
		}
	}
	return nil
}

// lost reports whether the node of a NodeSubnet no longer has the subnet: the node is gone or, if Kubernetes assigns the
// subnets, was created again with other subnets.
func (c *Controller) lost(ctx context.Context, s subnetplan.Subnet) (bool, error) {
	present, err := c.exists(ctx, s.Node)
	if err != nil || !present || !c.FromNode {
		return err == nil && !present, err
	}
	spec := s.Object.Spec
	node, err := index.Node(ctx, c.API, s.Node)
	if err != nil || node == nil || node.UID == spec.NodeUID || slices.Contains(node.Spec.PodCIDRs, spec.CIDR) {
		return false, err
	}
	n, err := c.Pools.Get(ctx, s.Node)
	if errors.Is(err, ciliumpool.ErrGone) {
		return true, nil
	}
	return err == nil && types.UID(n.UID) != spec.CiliumNodeUID && !slices.Contains(n.PodCIDRs, spec.CIDR), err
}
