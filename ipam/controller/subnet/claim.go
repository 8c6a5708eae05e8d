// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/nodeutil"
	"fixedip.io/fixedip/ipam/core/plan"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/subnetplan"
	"fixedip.io/fixedip/ipam/store/fixedips"
	"fixedip.io/fixedip/ipam/store/subnets"
)

// claimTries bounds how often a new subnet is claimed before the node has to wait for its next turn.
const claimTries = 8

// claim binds the NodeSubnets that a node has to its CiliumNode, creates one in each family that it lacks, and then
// compares them with those of other nodes. exhausted are the families without a free subnet.
func (a *Assigner) claim(ctx context.Context, n pool.NodePool, h subnetplan.Holder, own []v1alpha1.NodeSubnet, lacking []address.Family, list []v1alpha1.NodeSubnet) (claims []v1alpha1.NodeSubnet, exhausted []address.Family, err error) {
	if own, err = a.bind(ctx, own, h); err != nil {
		return nil, nil, err
	}
	lacking = slices.Clone(lacking)
	known := subnetplan.FromNodeSubnets(list)
	for range claimTries {
		fresh, exhausted, err := a.carve(ctx, lacking, h, known)
		if err != nil {
			return nil, nil, err
		}
		live, err := a.Store.ListLive(ctx)
		if err != nil {
			return nil, nil, err
		}
		known = subnetplan.FromNodeSubnets(live)
		if err := verify(own, live); err != nil {
			return nil, nil, err
		}
		for i := range fresh {
			s, _ := subnetplan.FromNodeSubnet(&fresh[i])
			clash, found := subnetplan.Clash(s, known, true)
			if !found {
				own = append(own, fresh[i])
				lacking = slices.DeleteFunc(lacking, func(f address.Family) bool { return f == address.Of(s.CIDR.Addr()) })
				continue
			}
			if err := a.Store.Delete(ctx, &fresh[i]); err != nil {
				return nil, nil, err
			}
			if clash.Node == n.Name {
				return nil, nil, fmt.Errorf("another controller has claimed %s for node %s: %w", clash.CIDR, n.Name, subnets.ErrChanged)
			}
		}
		if len(lacking) == len(exhausted) {
			return own, exhausted, nil
		}
	}
	return nil, nil, fmt.Errorf("claim a subnet for node %s: others were faster %d times: %w", n.Name, claimTries, subnets.ErrChanged)
}

// bind has NodeSubnets name the CiliumNode that they are about to be written to.
func (a *Assigner) bind(ctx context.Context, own []v1alpha1.NodeSubnet, h subnetplan.Holder) ([]v1alpha1.NodeSubnet, error) {
	bound := slices.Clone(own)
	for i := range bound {
		if bound[i].Spec.CiliumNodeUID == h.CiliumNodeUID && bound[i].Spec.NodeUID == h.NodeUID {
			continue
		}
		ns, err := a.Store.Assign(ctx, &bound[i], h)
		if err != nil {
			return nil, err
		}
		bound[i] = *ns
	}
	return bound, nil
}

// verify returns an error unless the NodeSubnets stand as they are, and overlap none of another node.
func verify(own, live []v1alpha1.NodeSubnet) error {
	all := subnetplan.FromNodeSubnets(live)
	for i := range own {
		s, _ := subnetplan.FromNodeSubnet(&own[i])
		now := named(live, s.CIDR)
		if now == nil || now.UID != own[i].UID || now.Spec.NodeName != s.Node {
			return fmt.Errorf("NodeSubnet %s of node %s: %w", own[i].Name, s.Node, subnets.ErrChanged)
		}
		if clash, found := subnetplan.Clash(s, all, false); found {
			return fmt.Errorf("NodeSubnet %s of node %s: %w: %s of node %q", own[i].Name, s.Node, errOverlap, clash.CIDR, clash.Node)
		}
	}
	return nil
}

// carve claims a free subnet in each of the families. A family is missing from both results if another controller was
// faster.
func (a *Assigner) carve(ctx context.Context, families []address.Family, h subnetplan.Holder, known []subnetplan.Subnet) (fresh []v1alpha1.NodeSubnet, exhausted []address.Family, err error) {
	if len(families) == 0 {
		return nil, nil, nil
	}
	taken, err := a.taken(ctx, known)
	if err != nil {
		return nil, nil, err
	}
	for _, f := range families {
		cidr, done, ok := a.Store.Cut(func(cutting []netip.Prefix) (netip.Prefix, bool) {
			for unfree := slices.Concat(taken, cutting); ; {
				cidr, ok := address.Carve(a.Rules.Pools, f, address.Union(unfree))
				if !ok || !a.Ledger.HasForeignAddresses([]netip.Prefix{cidr}) {
					return cidr, ok
				}
				// A pool still offers an address there, which has no home.
				unfree = append(unfree, cidr)
			}
		})
		if !ok {
			exhausted = append(exhausted, f)
			continue
		}
		ns, err := a.Store.Create(ctx, cidr, h)
		done()
		switch {
		case err == nil:
			fresh = append(fresh, *ns)
		case !errors.Is(err, subnets.ErrTaken):
			return nil, nil, err
		}
	}
	return fresh, exhausted, nil
}

// taken returns the subnets that no new claim may overlap: those of NodeSubnets and of CiliumNodes, and those that
// reserved addresses without either are in.
func (a *Assigner) taken(ctx context.Context, known []subnetplan.Subnet) ([]netip.Prefix, error) {
	list, err := a.Store.List(ctx)
	if err != nil {
		return nil, err
	}
	taken := slices.Concat(subnetplan.CIDRs(known), cidrs(list))
	for _, n := range a.Ledger.Nodes() {
		taken = append(taken, n.Subnets...)
	}
	records, err := fixedips.Read(ctx, a.Cached, a.Ledger.ReservationsWithoutSubnet())
	if err != nil {
		return nil, err
	}
	missing := subnetplan.Missing(a.Rules.Pools, address.Union(taken), plan.AllReservedAddresses(records), func(string) bool { return true })
	return append(taken, subnetplan.CIDRs(missing)...), nil
}

// assignBrought gives a node the subnets that Kubernetes assigned to it and that its CiliumNode lacks. NodeSubnets of
// the node that Kubernetes has not assigned to it are left alone: it was made again with others.
func (a *Assigner) assignBrought(ctx context.Context, n pool.NodePool, node *corev1.Node, list []v1alpha1.NodeSubnet) (Assignment, error) {
	if node == nil {
		return Assignment{}, nil
	}
	brought, err := nodeutil.PodCIDRs(node)
	if err != nil {
		return Assignment{}, err
	}
	h := holder(n, node)
	given := Assignment{Origin: subnetplan.Brought}
	var claims []v1alpha1.NodeSubnet
	had := false
	for _, cidr := range brought {
		if slices.Contains(n.Subnets, cidr) {
			continue
		}
		ns := named(list, cidr)
		switch {
		case ns == nil:
			if ns, err = a.Store.Create(ctx, cidr, h); err != nil {
				return Assignment{}, err
			}
		case ns.Spec.NodeName != n.Name:
			if free, err := a.lost(ctx, ns); err != nil || !free {
				given.Overlap, given.With = cidr, ns.Spec.NodeName
				return given, err
			}
			had = true
		default:
			had = true
		}
		claims = append(claims, *ns)
	}
	if len(claims) == 0 {
		return Assignment{}, nil
	}
	if claims, err = a.bind(ctx, claims, h); err != nil {
		return Assignment{}, err
	}
	live, err := a.Store.ListLive(ctx)
	if err != nil {
		return Assignment{}, err
	}
	for i := range claims {
		s, _ := subnetplan.FromNodeSubnet(&claims[i])
		clash, found := subnetplan.Clash(s, subnetplan.FromNodeSubnets(live), false)
		if !found {
			continue
		}
		other := named(live, clash.CIDR)
		free, err := a.lost(ctx, other)
		if err != nil {
			return Assignment{}, err
		}
		if free {
			// Kubernetes decides about ranges: what a node that is gone had of this one is no claim.
			err = a.Store.Delete(ctx, other)
			return Assignment{}, errors.Join(err, subnets.ErrChanged)
		}
		given.Overlap, given.With = s.CIDR, clash.Node
		return given, a.Store.Delete(ctx, &claims[i])
	}
	return a.publish(ctx, n, node, claims, given, had)
}
