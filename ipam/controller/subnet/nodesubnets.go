// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/subnetplan"
)

var (
	// errTaken means that the subnet is claimed already.
	errTaken = errors.New("the subnet has been claimed already")
	// ErrChanged means that the NodeSubnet was written or deleted since it was read. Nothing was written.
	ErrChanged = errors.New("the NodeSubnet has changed")
)

// Every write of a NodeSubnet has a precondition, so that a controller that is behind fails instead of overwriting.

// List returns all NodeSubnets as the caches show them. The objects must not be changed.
func (c *Controller) List(ctx context.Context) ([]subnetplan.Subnet, error) {
	return listFrom(ctx, c.Cached, client.UnsafeDisableDeepCopy)
}

// Count returns how many orphaned subnets have reserved addresses, and the CIDRs of all NodeSubnets, as the caches show
// them.
func (c *Controller) Count(ctx context.Context) (orphaned int, claimed []netip.Prefix) {
	list, err := c.List(ctx)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Orphaned subnets not counted")
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

// create claims a subnet for a node: the API server lets only one controller create a name. errTaken: a NodeSubnet of
// the name exists.
func (c *Controller) create(ctx context.Context, cidr netip.Prefix, h subnetplan.Holder) (subnetplan.Subnet, error) {
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

// assign makes a node the holder of a subnet. If another node had it, that node is recorded, and the choice of a
// successor has served its purpose. A claim that names the holder already gets a new version all the same, so that the
// controller that made it can't withdraw it. ErrChanged: the NodeSubnet is not what it was when it was read.
func (c *Controller) assign(ctx context.Context, s subnetplan.Subnet, h subnetplan.Holder) (subnetplan.Subnet, error) {
	ns := s.Object.DeepCopy()
	if ns.Spec.NodeName != h.Node {
		ns.Spec.PreviousNodeName, ns.Spec.Successor = ns.Spec.NodeName, ""
	}
	ns.Spec.NodeName, ns.Spec.NodeUID, ns.Spec.CiliumNodeUID = h.Node, h.NodeUID, h.CiliumNodeUID
	if ns.Spec == s.Object.Spec {
		ns.Spec.Resumed++
	}
	// An update names the resourceVersion that was read.
	if err := c.API.Update(ctx, ns); err != nil {
		return subnetplan.Subnet{}, fmt.Errorf("assign NodeSubnet %s to node %s: %w", ns.Name, h.Node, changed(err))
	}
	s, _ = subnetplan.FromNodeSubnet(ns)
	return s, nil
}

// updateStatus writes the status of a NodeSubnet.
func (c *Controller) updateStatus(ctx context.Context, s subnetplan.Subnet, status v1alpha1.NodeSubnetStatus) error {
	ns := s.Object.DeepCopy()
	ns.Status = status
	if err := c.API.Status().Update(ctx, ns); err != nil {
		return fmt.Errorf("write the status of NodeSubnet %s: %w", ns.Name, changed(err))
	}
	return nil
}

// delete gives a subnet up. ErrChanged: the NodeSubnet is not what it was when it was read.
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

// changed returns ErrChanged for an error of the API server that says so.
func changed(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return fmt.Errorf("%w: %w", ErrChanged, err)
	}
	return err
}
