// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/request"
	"fixedip.io/fixedip/ipam/store/workloads"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
	"fixedip.io/fixedip/plugins/fixedip/requeue"
)

// requests reports whether the pod asks for addresses. That counts only for a first placement: an identity keeps what
// it has.
func (p *Plan) requests() bool { return len(p.requested.Families()) > 0 }

// requestOf returns the addresses that a pod asks for; zero: none. The workload has to be known: it may have the
// annotation, and says where ordinals start. Errors are for people.
func (b *Binder) requestOf(pod *corev1.Pod, id identity.Identity) (request.Asked, error) {
	workload, err := b.workloadOf(id)
	if err != nil {
		return request.Asked{}, err
	}
	requested, _, err := request.Of(pod, *workload, id.Slot || id.Itself())
	return requested, err
}

// workloadOf returns the workload of an identity, and no other workload of its name. Errors are for people.
func (b *Binder) workloadOf(id identity.Identity) (*identity.Workload, error) {
	if id.Itself() {
		return &identity.Workload{GroupKind: id.Owner.GroupKind(), Namespace: id.Namespace, Name: id.Owner.Name, UID: id.Owner.UID}, nil
	}
	workload, err := b.Cache.Workloads.Get(id.Owner.GroupKind(), id.Namespace, id.Owner.Name)
	switch {
	case errors.Is(err, workloads.ErrUnknown):
		return nil, fmt.Errorf("its %s %s/%s, which may ask for addresses, has not been seen by the scheduler yet; see whether it may list and watch all of that kind", id.Owner.Kind, id.Namespace, id.Owner.Name)
	case err != nil:
		return nil, fmt.Errorf("read %s %s/%s from the cache: %w", id.Owner.Kind, id.Namespace, id.Owner.Name, err)
	case workload == nil || workload.UID != id.Owner.UID:
		return nil, fmt.Errorf("its %s %s/%s, which may ask for addresses, has not been seen by the scheduler yet; it waits for that", id.Owner.Kind, id.Namespace, id.Owner.Name)
	}
	return workload, nil
}

// findRequested plans a first placement with the nodes whose subnets have what the pod asks for; with all nodes if it
// asks for nothing.
func (b *Binder) findRequested(p *Plan, pod *corev1.Pod) (*Plan, error) {
	wake := p.wakeOn().And(metrics.Workload, p.id.Resource())
	requested, err := b.requestOf(pod, p.id)
	if err != nil {
		return nil, &Refusal{Reason: err.Error(), WakeOn: wake}
	}
	p.requested = requested
	if !p.requests() {
		return p, nil
	}
	for _, f := range requested.Families() {
		if !slices.Contains(b.families, f) {
			return nil, refuse(wake, "asks for %s, but the scheduler gives pods no %s addresses; leave them out or add %s to its ipFamilies", requested, f, f)
		}
		if a, single := requested.Single(f); single {
			if blocker := b.Cache.Ledger.Blocker(p.id.Key(), a); blocker != nil {
				return nil, refuse(b.wakeOnRoom(p), "asks for %s (%s): %s", a, requested.Source, blocker.Message())
			}
		}
	}
	reach := b.Cache.Ledger.NodesServing(requested.Addresses)
	existing := slices.DeleteFunc(slices.Clone(reach), func(name string) bool { return b.node(name) == nil })
	switch {
	case len(reach) == 0 && len(requested.Families()) > 1:
		return nil, refuse(b.wakeOnRoom(p), "asks for %s, but no node has addresses of each family among them in its subnets; ask for addresses of one node", requested)
	case len(reach) == 0:
		return nil, refuse(b.wakeOnRoom(p), "asks for %s, which is in no node's subnet; ask for addresses that are", requested)
	case len(existing) == 0:
		// MayUse wakes it.
		return nil, refuse(wake, "asks for %s, which is in the subnets of node %s, which does not exist; it waits for that node to come back", requested, reach[0])
	}
	p.Nodes = sets.New(existing...)
	return p, nil
}

// fitsRequested accepts a node that has a free address in each family, and in those that the pod asks for one of these.
func (b *Binder) fitsRequested(p *Plan, node string) error {
	for _, f := range b.families {
		asks := len(p.requested.Ranges(f)) > 0
		if asks && b.Cache.Ledger.CanAllocate(node, []address.Family{f}, p.requested.Addresses) || !asks && b.Cache.Ledger.Available(node, f) > 0 {
			continue
		}
		p.lacked.Store(true)
		switch {
		case asks:
			return refuse(requeue.WakeOn{}, "node(s) had none of the addresses free that the pod asks for: %s", p.requested)
		case p.Unreserved:
			return refuse(requeue.WakeOn{}, "strict node(s) had no free %s address for the pod in their subnets", f)
		default:
			return refuse(requeue.WakeOn{}, "node(s) had no free %s address for a fixed pod in their subnets", f)
		}
	}
	return nil
}

// wakeOnRoom returns what helps a pod without a reservation: an address, of those that it asks for, becomes free. A pod
// of a workload with slots is also helped by a free slot, and by that alone if it searches for one.
func (b *Binder) wakeOnRoom(p *Plan) requeue.WakeOn {
	wake := p.wakeOn()
	if p.id.Slot {
		wake = wake.And(metrics.Slot, p.id.Resource())
	}
	if wake.Searching = p.searching; p.searching {
		return wake.And(metrics.Workload, p.id.Resource())
	}
	wake.Room = &requeue.Room{Requested: p.requested.Addresses, Strict: p.Unreserved}
	if !p.requests() {
		return wake
	}
	for _, f := range p.requested.Families() {
		if a, single := p.requested.Single(f); single {
			// The address may be in no subnet.
			wake = wake.AndHome(a)
		}
	}
	return wake.And(metrics.Workload, p.id.Resource())
}
