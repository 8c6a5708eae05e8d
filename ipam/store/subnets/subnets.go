// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package subnets reads and writes NodeSubnets. Creating one is the claim of its subnet: the API server lets only one
// controller create a name.
//
// Every write has a precondition, so that a controller that is behind fails instead of overwriting. The package
// decides nothing: which node has which subnet is the work of ipam/core/subnetplan, and the order of the writes that
// of ipam/controller/subnet.
package subnets

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/subnetplan"
)

var (
	// ErrTaken means that the subnet is claimed already.
	ErrTaken = errors.New("the subnet has been claimed already")
	// ErrChanged means that the NodeSubnet was written or deleted since it was read. Nothing was written.
	ErrChanged = errors.New("the NodeSubnet has changed")
)

// Store reads and writes NodeSubnets.
type Store struct {
	api    client.Client
	cached client.Reader

	mu sync.Mutex
	// written are own writes that the cache does not show yet. Key: the name. An object leaves when the cache shows
	// its generation or a later one, or another object of the name.
	written map[string]*v1alpha1.NodeSubnet
	// cutting are the subnets that a worker of this process is about to claim.
	cutting map[netip.Prefix]bool
}

// New returns a Store. api reads from the API server, cached may be behind.
func New(api client.Client, cached client.Reader) *Store {
	return &Store{api: api, cached: cached, written: map[string]*v1alpha1.NodeSubnet{}, cutting: map[netip.Prefix]bool{}}
}

// List returns all NodeSubnets by name, as the cache and own writes show them. They must not be changed.
func (s *Store) List(ctx context.Context) ([]v1alpha1.NodeSubnet, error) {
	var list v1alpha1.NodeSubnetList
	if err := s.cached.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list NodeSubnets from the cache: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	byName := func(a, b v1alpha1.NodeSubnet) int { return strings.Compare(a.Name, b.Name) }
	slices.SortFunc(list.Items, byName)
	var missing []v1alpha1.NodeSubnet
	for name, own := range s.written {
		i, found := slices.BinarySearchFunc(list.Items, *own, byName)
		if !found {
			missing = append(missing, *own)
			continue
		}
		switch shown := &list.Items[i]; {
		case shown.UID != own.UID && !shown.CreationTimestamp.Before(&own.CreationTimestamp), shown.UID == own.UID && shown.Generation >= own.Generation:
			delete(s.written, name)
		default:
			*shown = *own
		}
	}
	list.Items = append(list.Items, missing...)
	slices.SortFunc(list.Items, byName)
	return list.Items, nil
}

// ListLive returns all NodeSubnets as the API server has them. It corrects what is known of own writes.
func (s *Store) ListLive(ctx context.Context) ([]v1alpha1.NodeSubnet, error) {
	s.mu.Lock()
	before := maps.Clone(s.written)
	s.mu.Unlock()
	var list v1alpha1.NodeSubnetList
	if err := s.api.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list NodeSubnets: %w", err)
	}
	exists := map[string]bool{}
	for i := range list.Items {
		exists[list.Items[i].Name] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, own := range before {
		if !exists[name] && s.written[name] == own {
			delete(s.written, name)
		}
	}
	return list.Items, nil
}

// Cut reserves a subnet among the workers of this process until done is called. choose returns a subnet that is in
// none of the given ones; ok is false if it finds none.
func (s *Store) Cut(choose func(cutting []netip.Prefix) (netip.Prefix, bool)) (subnet netip.Prefix, done func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	subnet, ok = choose(slices.Collect(maps.Keys(s.cutting)))
	if !ok {
		return netip.Prefix{}, nil, false
	}
	s.cutting[subnet] = true
	return subnet, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.cutting, subnet)
	}, true
}

// Create claims a subnet for a node. ErrTaken: a NodeSubnet of the name exists.
func (s *Store) Create(ctx context.Context, cidr netip.Prefix, h subnetplan.Holder) (*v1alpha1.NodeSubnet, error) {
	ns := &v1alpha1.NodeSubnet{
		ObjectMeta: metav1.ObjectMeta{Name: address.SubnetName(cidr)},
		Spec:       v1alpha1.NodeSubnetSpec{CIDR: cidr.String(), NodeName: h.Node, NodeUID: h.NodeUID, CiliumNodeUID: h.CiliumNodeUID},
	}
	switch err := s.api.Create(ctx, ns); {
	case apierrors.IsAlreadyExists(err):
		return nil, fmt.Errorf("NodeSubnet %s: %w", ns.Name, ErrTaken)
	case err != nil:
		return nil, fmt.Errorf("create NodeSubnet %s: %w", ns.Name, err)
	}
	s.wrote(ns)
	return ns, nil
}

// Assign makes a node the holder of a subnet. If another node had it, that node is recorded, and the choice of a
// successor has served its purpose. ErrChanged: the NodeSubnet is not what it was when ns was read.
func (s *Store) Assign(ctx context.Context, ns *v1alpha1.NodeSubnet, h subnetplan.Holder) (*v1alpha1.NodeSubnet, error) {
	ns = ns.DeepCopy()
	if ns.Spec.NodeName != h.Node {
		ns.Spec.PreviousNodeName, ns.Spec.Successor = ns.Spec.NodeName, ""
	}
	ns.Spec.NodeName, ns.Spec.NodeUID, ns.Spec.CiliumNodeUID = h.Node, h.NodeUID, h.CiliumNodeUID
	// An update names the resourceVersion that was read.
	if err := s.api.Update(ctx, ns); err != nil {
		return nil, fmt.Errorf("assign NodeSubnet %s to node %s: %w", ns.Name, h.Node, changed(err))
	}
	s.wrote(ns)
	return ns, nil
}

// Resume takes over a claim for its node that was not assigned yet, so that the controller that made it can't withdraw it.
func (s *Store) Resume(ctx context.Context, ns *v1alpha1.NodeSubnet, h subnetplan.Holder) (*v1alpha1.NodeSubnet, error) {
	ns = ns.DeepCopy()
	ns.Spec.Resumed++
	return s.Assign(ctx, ns, h)
}

// UpdateStatus writes the status of a NodeSubnet.
func (s *Store) UpdateStatus(ctx context.Context, ns *v1alpha1.NodeSubnet, status v1alpha1.NodeSubnetStatus) error {
	ns = ns.DeepCopy()
	ns.Status = status
	if err := s.api.Status().Update(ctx, ns); err != nil {
		return fmt.Errorf("write the status of NodeSubnet %s: %w", ns.Name, changed(err))
	}
	return nil
}

// Delete gives a subnet up. ErrChanged: the NodeSubnet is not what it was when ns was read.
func (s *Store) Delete(ctx context.Context, ns *v1alpha1.NodeSubnet) error {
	err := s.api.Delete(ctx, ns, client.Preconditions{UID: &ns.UID, ResourceVersion: &ns.ResourceVersion})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete NodeSubnet %s: %w", ns.Name, changed(err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.written, ns.Name)
	return nil
}

// wrote notes an own write until the cache shows it.
func (s *Store) wrote(ns *v1alpha1.NodeSubnet) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written[ns.Name] = ns
}

// changed returns ErrChanged for an error of the API server that says so.
func changed(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return fmt.Errorf("%w: %w", ErrChanged, err)
	}
	return err
}
