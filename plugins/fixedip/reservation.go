package fixedip

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
	held := w.ledger.Held(id.Key())
	for _, h := range held {
		if kind, name, ok := w.ledger.WorkloadOf(h); ok && (kind != id.Owner.Kind || name != id.Owner.Name) {
			return reservation{}, &unreservable{reason: fmt.Sprintf("its name has the address %s on node %s, which is kept for %s %s, and it belongs to %s %s",
				address.Join(h.Addrs), h.Node, kind, name, id.Owner.Kind, id.Owner.Name)}
		}
	}
	if fip == nil {
		return fromPools(held, ""), nil
	}
	if fip.DeletionTimestamp != nil {
		return reservation{}, &unreservable{reason: fmt.Sprintf("its former address (%v) is being released; it gets a new one when FixedIP %s is gone", fip.Spec.IPs, fip.Name)}
	}
	if o := fip.Spec.Owner; o.Kind != id.Owner.Kind || o.Name != id.Owner.Name {
		return reservation{}, &unreservable{reason: fmt.Sprintf("its name has an address (%v) that is kept for %s %s, and it belongs to %s %s; delete FixedIP %s to give that address up",
			fip.Spec.IPs, o.Kind, o.Name, id.Owner.Kind, id.Owner.Name, fip.Name)}
	}
	if len(held) > 0 {
		return fromPools(held, fip.Spec.NodeName), nil
	}
	return w.fromRecord(fip)
}

// keptFrom are the nodes on which a pod without a fixed address would get one that is kept for
// somebody else: the agent goes by the pod's name alone. An entry whose resource names no workload
// was written by hand for just this pod.
func (w *world) keptFrom(pod *corev1.Pod) []string {
	var nodes []string
	for _, h := range w.ledger.Held(pool.OwnerKey(pod.Namespace, pod.Name)) {
		kind, name, ok := w.ledger.WorkloadOf(h)
		owner := metav1.GetControllerOfNoCopy(pod)
		if ok && (owner == nil || owner.Kind != kind || owner.Name != name) {
			nodes = append(nodes, h.Node)
		}
	}
	return nodes
}

// fromPools takes the holding on the preferred node, or the first. Several holdings are what a
// scheduler leaves that died between a claim and its record; the controller releases those that
// the pod is not bound to.
func fromPools(held []ledger.Holding, preferred string) reservation {
	if len(held) == 0 {
		return reservation{}
	}
	chosen := held[0]
	for _, h := range held {
		if h.Node == preferred {
			chosen = h
		}
	}
	return reservation{node: chosen.Node, addrs: chosen.Addrs}
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
// entry was written after the node was chosen. A claim on the given node would be its second.
func (w *world) heldElsewhere(owner, node string) (ledger.Holding, bool) {
	held := w.ledger.Held(owner)
	if len(held) == 0 || slices.ContainsFunc(held, func(h ledger.Holding) bool { return h.Node == node }) {
		return ledger.Holding{}, false
	}
	return held[0], true
}
