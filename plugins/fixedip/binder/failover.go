// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/plugins/fixedip/requeue"
)

// failoverTries are the pods that look beyond the node that owns their addresses. The zero value is ready.
type failoverTries struct {
	mu sync.Mutex
	// next are the pods whose next plan has all nodes. opened are those that had such a plan, and so may have preempted
	// others on another node: a nominated node that somebody else wrote is no reason to leave the pod's own node. Key: the
	// UID of a pod that the watch shows.
	next, opened map[types.UID]bool
}

// add adds a pod to one of the sets. exists is asked under the lock: see slotWaiters.search.
func (t *failoverTries) add(set *map[types.UID]bool, uid types.UID, exists func() bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !exists() {
		return
	}
	if *set == nil {
		*set = map[types.UID]bool{}
	}
	(*set)[uid] = true
}

// has reports whether a pod is in one of the sets.
func (t *failoverTries) has(set *map[types.UID]bool, uid types.UID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return (*set)[uid]
}

// take reports, once, whether the plan of a pod has all nodes.
func (t *failoverTries) take(uid types.UID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	next := t.next[uid]
	delete(t.next, uid)
	return next
}

func (t *failoverTries) remove(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.next, uid)
	delete(t.opened, uid)
}

// policyOf returns the failover policy of a pod. Before the FixedIP is written, it is what the annotations say from
// which the FixedIP will get its policy. If they are not readable, or the workload is not known, the pod waits.
func (b *Binder) policyOf(p *Plan) v1alpha1.Failover {
	if p.id.Slot {
		// It has only claimed what it has, and never run with it.
		return v1alpha1.Wait
	}
	policy := p.reservation.failover
	if !p.reservation.hasFixedIP {
		workload, err := b.Cache.Workloads.Get(p.id.Owner.GroupKind(), p.id.Namespace, p.id.Owner.Name)
		if err != nil || workload == nil {
			return v1alpha1.Wait
		}
		if policy, err = identity.Failover(workload.Annotations, workload.Template); err != nil {
			return v1alpha1.Wait
		}
	}
	if policy == "" {
		return b.failover
	}
	return policy
}

// whyNotElsewhere says why a pod whose node cannot take it does not go to another, and what helps, as the end of a sentence.
// If that is empty, it goes to home, or to any node if home is empty.
func (b *Binder) whyNotElsewhere(p *Plan, policy v1alpha1.Failover) (why, home string) {
	if policy == v1alpha1.Wait || policy == v1alpha1.Migrate && !b.movable {
		home = b.homeNodeIfMoved(p.id, p.reservation)
	}
	switch {
	case home != "":
		return "", home
	case p.id.Slot:
		return "; delete the pod to have another in its place", ""
	case policy == v1alpha1.Wait && b.movable:
		return ", or set failover to Migrate", ""
	case policy == v1alpha1.Wait:
		return ", or set failover to Reassign, which gives the pod another address", ""
	case policy == v1alpha1.Migrate && !b.movable:
		return "; it may not migrate, although its failover says so: the scheduler's arguments have allowAddressMigration at false", ""
	}
	if b.wereUsed(p) {
		if why := b.formerPod(p, policy == v1alpha1.Migrate); why != "" {
			return "; its old pod may still run there: " + why, ""
		}
	}
	if policy == v1alpha1.Migrate {
		if _, err := b.Cache.Ledger.HomeOf(p.id.Key(), p.reservation.addrs); err != nil {
			return "; " + err.Error(), ""
		}
	}
	return "", ""
}

// homeNodeIfMoved returns the home of addresses that were moved to a node that does not exist any more; empty otherwise. They
// return even if they may not move: nothing runs on a deleted node, and their subnet is at home.
func (b *Binder) homeNodeIfMoved(id identity.Identity, r reservation) string {
	if r.node == "" || id.Slot {
		return ""
	}
	if _, err := b.Nodes.Get(r.node); !apierrors.IsNotFound(err) {
		return ""
	}
	home, err := b.Cache.Ledger.HomeOf(id.Key(), r.addrs)
	if err != nil || home == r.node {
		return ""
	}
	if _, err := b.Nodes.Get(home); err != nil {
		return ""
	}
	return home
}

// takenFrom reports whether an address that is on its way to the node of the reservation was released there from the
// same pod, which may run on.
func (b *Binder) takenFrom(p *Plan) bool {
	n, _ := b.Cache.Ledger.Node(p.reservation.node)
	for _, a := range p.reservation.addrs {
		if n.Entries[a].CoolsDownFrom(p.id.Key()) {
			return true
		}
	}
	return false
}

// nodeUnavailable says why the node of the reservation cannot take the pod, whatever room it has, as the end of the sentence that
// ownedByPrefix begins; empty if Fits has to look.
func (b *Binder) nodeUnavailable(p *Plan) string {
	r := p.reservation
	if b.snapshot.Node(r.node) == nil {
		return "does not exist; it waits for that node to come back"
	}
	if r.moving {
		if err := b.Cache.Ledger.Carries(r.node, p.id.Key(), r.addrs); err != nil {
			return "can't carry it now: " + err.Error()
		}
	}
	return ""
}

// widenSearch plans with other nodes than that of the reservation: with the home of its addresses, or with all.
func (b *Binder) widenSearch(p *Plan, pod *corev1.Pod, policy v1alpha1.Failover, home string) (*Plan, error) {
	b.tries.add(&b.tries.opened, pod.UID, func() bool { return b.exists(pod) })
	p.failover, p.home = policy, home
	switch {
	case home != "":
		p.failover = v1alpha1.Migrate
		p.narrow(home)
	case policy == v1alpha1.Reassign:
		return b.findRequested(p, pod)
	}
	return p, nil
}

// fitsCarrier accepts a node that can carry the pod's addresses.
func (b *Binder) fitsCarrier(p *Plan, node string) error {
	err := b.Cache.Ledger.Carries(node, p.id.Key(), p.reservation.addrs)
	if err == nil {
		return nil
	}
	p.lacked.Store(true)
	return &Refusal{Reason: "node(s) couldn't carry the pod's address: " + err.Error()}
}

// wakeOnRemaining returns what helps a pod that waits for its node: its reservation, the node or the home of its
// addresses changes, or its failover policy.
func (b *Binder) wakeOnRemaining(p *Plan) requeue.WakeOn {
	wake := requeue.WakeOn{Owner: p.id.Key(), Workload: p.id.Resource(), Nodes: []string{p.reservation.node}, Addrs: p.reservation.addrs}
	for _, a := range p.reservation.addrs {
		if home, ok := b.Cache.Ledger.Home(a); ok && !slices.Contains(wake.Nodes, home) {
			wake.Nodes = append(wake.Nodes, home)
		}
	}
	return wake
}

// wakeOnNowhere returns what helps a pod that may leave its node, and that no node could take.
func (b *Binder) wakeOnNowhere(p *Plan) requeue.WakeOn {
	if p.failover == v1alpha1.Reassign {
		wake := b.wakeOnRoom(p)
		if !p.lacked.Load() && !p.requests() {
			wake.Room = nil
		}
		return wake
	}
	wake := requeue.WakeOn{Owner: p.id.Key()}
	if p.lacked.Load() {
		wake.Room = &requeue.Room{Carried: p.reservation.addrs}
	}
	return wake
}
