// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
)

// reservation is where the addresses of an identity are. The zero reservation is none: a first
// placement.
type reservation struct {
	node  string
	addrs []netip.Addr
	// projected: the addresses are in the FixedIP and not in a pool, so that they have to be
	// claimed as they are.
	projected bool
	// transit: the home of the addresses says that they are on the node, and that node's pool does not
	// say so yet: a move that was interrupted.
	transit bool
	// holders are the nodes whose pools gave the identity something when this was found. More than
	// node are what claims left behind that were never used.
	holders []string
	// beside are those of the addresses that the FixedIP does not name, although it names others of the family: the
	// agent would choose.
	beside []netip.Addr
	// named: a FixedIP of just the pod's workload names all of the addresses, so that they are the pod's for good.
	named bool
	// recorded tells whether there is a FixedIP, and failover is its policy.
	recorded bool
	failover v1alpha1.Failover
}

func keyOf(fip *v1alpha1.FixedIP) string {
	return pool.OwnerKey(fip.Namespace, fip.Spec.PodName)
}

// unreservable says why a pod can't be placed. Its text is shown in the pod's events.
type unreservable struct {
	reason string
	// until tells of a node with news whether they helped; nil: it can't be told.
	until func(node string) bool
}

func (e *unreservable) Error() string { return e.reason }

// reservationOf finds the reservation of an identity. The pools come first: an address belongs to
// whom the pool of its node says, and a claim may have no record yet.
func (w *world) reservationOf(ctx context.Context, id identity.Identity) (reservation, error) {
	fip, err := w.fixedIP(ctx, id.Namespace, id.PodName)
	if err != nil {
		return reservation{}, err
	}
	if fip != nil && (id.Slot || fip.Spec.Slot) {
		// A slot is not named after its pod: it is another's by chance, or looked up as a slot.
		fip = nil
	}
	held := w.ledger.Held(id.Key())
	for _, h := range held {
		if kind, name, ok := w.ledger.EntryOf(h).WorkloadRef(); ok && (kind != id.Owner.Label() || name != id.Owner.Name) {
			return reservation{}, &unreservable{reason: fmt.Sprintf("its name has the address %s on node %s, which is kept for %s %s, and it belongs to %s %s",
				address.Join(h.Addrs), h.Node, kind, name, id.Owner.Kind, id.Owner.Name)}
		}
	}
	away := w.ledger.Away(id.Key())
	if fip == nil {
		return w.fromPools(held, away, "", nil), nil
	}
	if fip.DeletionTimestamp != nil {
		return reservation{}, &unreservable{reason: fmt.Sprintf("its former address (%v) is being released; it gets a new one when FixedIP %s is gone", fip.Spec.IPs, fip.Name)}
	}
	if o := identity.OwnerOf(fip); o.GroupKind() != id.Owner.GroupKind() || o.Name != id.Owner.Name {
		return reservation{}, &unreservable{reason: fmt.Sprintf("its name has an address (%v) that is kept for %s %s, and it belongs to %s %s; delete FixedIP %s to give that address up",
			fip.Spec.IPs, o.Kind, o.Name, id.Owner.Kind, id.Owner.Name, fip.Name)}
	}
	var r reservation
	if len(held)+len(away) > 0 {
		r = w.fromPools(held, away, fip.Spec.NodeName, fip.Spec.IPs)
		r.beside = address.Besides(r.addrs, fip.Spec.IPs)
	} else if r, err = w.fromRecord(fip); err != nil {
		return reservation{}, err
	}
	r.named = len(r.addrs) > 0 && fip.Spec.Owner.UID == id.Owner.UID && containsAll(addressesOf(fip.Spec.IPs), r.addrs)
	r.recorded, r.failover = true, fip.Spec.Failover
	return r, nil
}

// keptFrom are the nodes on which a pod without a fixed address would get one that is kept for
// somebody else: the agent goes by the pod's name alone. An entry whose resource names no workload
// was written by hand for just this pod, and an ordinary one is nobody else's either.
func (w *world) keptFrom(pod *corev1.Pod) []string {
	var nodes []string
	for _, h := range w.ledger.Held(pool.OwnerKey(pod.Namespace, pod.Name)) {
		kind, name, ok := w.ledger.EntryOf(h).WorkloadRef()
		owner := metav1.GetControllerOfNoCopy(pod)
		if owner != nil && owner.Kind == identity.ReplicaSets.Kind && w.workloads != nil {
			if by, seen := w.workloads.Controller(pod.Namespace, *owner); seen && by != nil {
				owner = by
			}
		}
		if ok && kind != pool.UnreservedKind && (owner == nil || identity.Label(schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).GroupKind()) != kind || owner.Name != name) {
			nodes = append(nodes, h.Node)
		}
	}
	return nodes
}

// optsOut says why a pod without a fixed address waits that had one before and opted out: the agent
// goes by its name and would give it that one again. The controller takes the address back while no
// pod has it; what is kept for a while or for good, or for the next of its name because its workload has opted in
// again, does not have to be waited for, but what pools have beside it does.
func (w *world) optsOut(ctx context.Context, pod *corev1.Pod) string {
	if !identity.OptsOut(pod.Annotations) {
		return ""
	}
	owner := metav1.GetControllerOfNoCopy(pod)
	for _, h := range w.ledger.Held(pool.OwnerKey(pod.Namespace, pod.Name)) {
		kind, name, ok := w.ledger.EntryOf(h).WorkloadRef()
		if !ok || owner == nil || owner.Kind != kind || owner.Name != name {
			continue
		}
		fip, err := w.fixedIP(ctx, pod.Namespace, pod.Name)
		if err != nil {
			continue
		}
		goes, wanted := h.Addrs, w.wants(pod.Namespace, owner)
		switch {
		case fip == nil && wanted:
			continue
		case fip != nil && fip.DeletionTimestamp == nil && (wanted || fip.Spec.Reclaim.WhenDeleted == v1alpha1.Retain || fip.Spec.Reclaim.TTL.Duration > 0):
			goes = address.Besides(h.Addrs, fip.Spec.IPs)
		}
		if len(goes) > 0 {
			return fmt.Sprintf("its former address (%s on node %s) is being released, since it opted out (annotation %s); it is placed when that is done", address.Join(goes), h.Node, identity.AnnotationEnabled)
		}
	}
	return ""
}

// wants tells whether a workload is there whose pods don't opt out: the next ones that it makes.
func (w *world) wants(namespace string, owner *metav1.OwnerReference) bool {
	if w.workloads == nil {
		return false
	}
	workload, err := w.workloads.Get(schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).GroupKind(), namespace, owner.Name)
	return err == nil && workload != nil && !identity.OptsOut(workload.Template)
}

// fromPools takes what the record names, where there are several: on the preferred node, or wherever.
// Without a record what was moved comes first, then what was written by hand, then the first holding. Several
// are what a scheduler left behind that died between claim and bind, or while it moved an address, or that was
// not shown in time what stood elsewhere (see alone).
func (w *world) fromPools(held []ledger.Holding, away []ledger.Absence, preferred string, ips []string) reservation {
	var choice []reservation
	var holders, byHand []string
	for _, h := range held {
		choice = append(choice, reservation{node: h.Node, addrs: h.Addrs})
		holders = append(holders, h.Node)
		if _, _, claimed := w.ledger.EntryOf(h).WorkloadRef(); !claimed {
			byHand = append(byHand, h.Node)
		}
	}
	for _, a := range away {
		if !slices.ContainsFunc(choice, func(r reservation) bool { return r.node == a.At && containsAll(r.addrs, a.Addrs) }) {
			choice = append(choice, reservation{node: a.At, addrs: a.Addrs, transit: true})
		}
	}
	chosen, best := reservation{}, -1
	for _, r := range choice {
		worth := 0
		for i, counts := range []bool{
			slices.Contains(byHand, r.node),
			r.node == preferred,
			slices.ContainsFunc(away, func(a ledger.Absence) bool { return a.At == r.node }),
			len(ips) > 0 && containsAll(r.addrs, addressesOf(ips)),
		} {
			if counts {
				worth += 1 << i
			}
		}
		if worth > best {
			chosen, best = r, worth
		}
	}
	chosen.holders = holders
	return chosen
}

func containsAll(addrs, wanted []netip.Addr) bool {
	return !slices.ContainsFunc(wanted, func(a netip.Addr) bool { return !slices.Contains(addrs, a) })
}

// addressesOf reads the addresses of a record; what is none is left out.
func addressesOf(ips []string) []netip.Addr {
	var addrs []netip.Addr
	for _, ip := range ips {
		if a, err := address.Parse(ip); err == nil {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// fromRecord places a reservation whose entries are in no pool at the home of its addresses.
func (w *world) fromRecord(fip *v1alpha1.FixedIP) (reservation, error) {
	r := reservation{projected: true}
	placed := func(string) bool {
		_, err := w.fromRecord(fip)
		return err == nil
	}
	for _, ip := range fip.Spec.IPs {
		a, err := address.Parse(ip)
		if err != nil {
			return reservation{}, &unreservable{reason: fmt.Sprintf("FixedIP %s: spec.ips: %v", fip.Name, err)}
		}
		home, ok := w.ledger.Home(a)
		if !ok {
			was := ""
			if fip.Spec.NodeName != "" {
				was = ", and was kept on node " + fip.Spec.NodeName
			}
			return reservation{}, &unreservable{fmt.Sprintf("its address %s (FixedIP %s) is in no node's subnet%s; it waits for a node that has it", a, fip.Name, was), placed}
		}
		if r.node != "" && r.node != home {
			return reservation{}, &unreservable{fmt.Sprintf("its addresses %v (FixedIP %s) are in the subnets of two nodes, %s and %s; delete the FixedIP and ask for addresses of one node", fip.Spec.IPs, fip.Name, r.node, home), placed}
		}
		r.node, r.addrs = home, append(r.addrs, a)
	}
	if r.node == "" {
		return reservation{}, nil
	}
	return r, nil
}

// heldElsewhere is a holding of a pod that holds nothing on the given node but does on another: its
// entry was written after the node was chosen. A claim on the given node would be its second. known
// are the nodes that it held something on before.
func (w *world) heldElsewhere(owner, node string, known []string) (ledger.Holding, bool) {
	held := w.ledger.Held(owner)
	if slices.ContainsFunc(held, func(h ledger.Holding) bool { return h.Node == node }) {
		return ledger.Holding{}, false
	}
	return unknown(held, known)
}

// alone refuses a claim that stands where the pod holds something on a node besides that was not known when its own
// was chosen: an administrator wrote it, or another scheduler, and the watch was behind. All pools are shown by one
// watch in the order of their writes: it has shown the claim, and so what was written before. Both entries stand, and
// the next cycle chooses.
func (w *world) alone(c ledger.Claim, known []string) error {
	if h, ok := unknown(w.ledger.Held(c.Owner), append(slices.Clone(known), c.Node)); ok {
		return pool.ErrOnOtherNode(c.Owner, h.Node, h.Addrs)
	}
	return nil
}

// unknown is the first holding on a node that is not known.
func unknown(held []ledger.Holding, known []string) (ledger.Holding, bool) {
	i := slices.IndexFunc(held, func(h ledger.Holding) bool { return !slices.Contains(known, h.Node) })
	if i < 0 {
		return ledger.Holding{}, false
	}
	return held[i], true
}
