package plan

import (
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
)

// Place is what stands at the home of an address that a record names.
type Place struct {
	Addr netip.Addr
	// Home is the node whose pool decides over the address; empty where no node has it in a subnet,
	// or several have.
	Home string
	// Entry is the entry in that pool; nil: there is none.
	Entry *pool.Entry
	// User is another pod, "namespace/name", that has the address there, by its own status or by the
	// agent's word; empty where none is known.
	User string
	// Rival is another FixedIP, "namespace/name", that names the address and comes first: see
	// Precedes.
	Rival string
}

// Precedes tells which of two records that name the same address has it: the one whose entry stands,
// or else the older one. Two such records are a person's mistake, and one of them has to wait.
func Precedes(a, b *v1alpha1.FixedIP, holds func(*v1alpha1.FixedIP) bool) bool {
	if x, y := holds(a), holds(b); x != y {
		return x
	}
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Namespace+"/"+a.Name < b.Namespace+"/"+b.Name
}

// projection finds where the addresses of a record that have no entry in any pool are to get one.
// All of them do or none does: what a pod holds in one family only, a scheduler would complete with
// any address of the other. Where something is in the way, that is told and waited for.
func projection(s Situation) (node string, addrs []netip.Addr, in *pool.Blocker) {
	for _, p := range s.Places {
		if heldAnywhere(s.Held, p.Addr) {
			continue
		}
		if o := hindered(s, p); o != nil {
			return "", nil, o
		}
		if node != "" && node != p.Home {
			return "", nil, &pool.Blocker{Addr: p.Addr, Node: p.Home, Reason: pool.AddressesOnDifferentNodes, Who: node, Asks: ownerOf(s)}
		}
		node, addrs = p.Home, append(addrs, p.Addr)
	}
	return node, addrs, nil
}

func heldAnywhere(held []ledger.Holding, a netip.Addr) bool {
	return slices.ContainsFunc(held, func(h ledger.Holding) bool { return slices.Contains(h.Addrs, a) })
}

// hindered says what keeps an entry for the record from being written at a place; nil: nothing does.
func hindered(s Situation, p Place) *pool.Blocker {
	owner := ownerOf(s)
	switch {
	case p.Home == "":
		return &pool.Blocker{Addr: p.Addr, Reason: pool.SubnetNotFound, Asks: owner}
	case p.Rival != "":
		return &pool.Blocker{Addr: p.Addr, Node: p.Home, Reason: pool.ReservedByOtherFixedIP, Who: p.Rival, Asks: owner}
	case p.User != "":
		return &pool.Blocker{Addr: p.Addr, Node: p.Home, Reason: pool.InUseByPod, Who: p.User, Asks: owner}
	case p.Entry == nil:
		return another(s, p)
	case p.Entry.Kind == pool.Cooldown && RunsOn(s.Pod, p.Home, p.Addr):
		// The address was taken from the name, and the pod has it from an agent that did not know yet: no other pod can.
		return another(s, p)
	case p.Entry.Kind == pool.Dynamic && RunsOn(s.Pod, p.Home, p.Addr):
		// The pod itself has it, so that no other can.
		return nil
	}
	return p.Entry.Blocker(p.Home, p.Addr, owner)
}

// another returns the Blocker if the pod has another address of the family at the same home than the recorded one: a pool
// never gives two to one pod.
func another(s Situation, p Place) *pool.Blocker {
	h, _ := heldOn(s.Held, p.Home)
	i := slices.IndexFunc(h.Addrs, func(a netip.Addr) bool { return address.Of(a) == address.Of(p.Addr) })
	if i < 0 {
		return nil
	}
	return &pool.Blocker{Addr: p.Addr, Node: p.Home, Reason: pool.OtherAddressAllocated, Who: h.Addrs[i].String(), Asks: ownerOf(s)}
}

// ownerOf is the pod of the record as entries name it.
func ownerOf(s Situation) string { return pool.OwnerKey(s.Record.Namespace, s.Record.Spec.PodName) }

// RunsOn tells whether a pod runs on a node with an address, and was not asked to stop.
func RunsOn(pod *corev1.Pod, node string, a netip.Addr) bool {
	return pod != nil && pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodRunning && boundTo(pod) == node && runsWith(pod, a)
}

// Project makes the edits that give a pod its recorded addresses in the pool of their home: all of
// them, or none and ErrTaken. own tells that the pod itself runs with the address of a dynamic entry, or of one that
// rests.
func Project(n pool.Node, addrs []netip.Addr, entry pool.Entry, own func(netip.Addr) bool, at time.Time) ([]pool.Edit, error) {
	var free []netip.Addr
	var edits []pool.Edit
	for _, a := range addrs {
		e, exists := n.Entries[a]
		user, used := n.Used[a]
		released := e.Kind == pool.Cooldown
		switch {
		case (exists && e.Kind == pool.Dynamic || released && n.OtherAddressOf(entry.Owner, addrs) == nil) && own(a) && (!used || user == entry.Owner):
			edits = append(edits, n.Own(a, entry, at))
		default:
			free = append(free, a)
		}
	}
	if len(free) == 0 {
		return edits, nil
	}
	claimed, err := n.Claim(free, entry)
	if err != nil {
		return nil, err
	}
	return append(edits, claimed...), nil
}

// conditions are those of the record as they should be now. What others say there is left alone.
func conditions(s Situation) []metav1.Condition {
	var want []metav1.Condition
	for _, c := range s.Record.Status.Conditions {
		want = append(want, *c.DeepCopy())
	}
	if len(s.Places) == 0 {
		return want
	}
	// Whole seconds are what the API keeps.
	at := metav1.Time{Time: s.Now.Truncate(time.Second)}
	set := func(kind string, status metav1.ConditionStatus, reason, message string) {
		meta.SetStatusCondition(&want, metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: at})
	}
	_, missing, in := projection(s)
	switch {
	case in != nil && in.Reason == pool.Moving:
		// Transient; no condition is needed.
	case in != nil:
		set(v1alpha1.ConditionProjected, metav1.ConditionFalse, string(in.Reason), in.Error())
	case len(missing) == 0:
		set(v1alpha1.ConditionProjected, metav1.ConditionTrue, "EntriesStand", "Every address has its entry in the pool of a node")
	}
	return want
}

func sameConditions(a, b []metav1.Condition) bool {
	return slices.EqualFunc(a, b, func(x, y metav1.Condition) bool {
		return x.Type == y.Type && x.Status == y.Status && x.Reason == y.Reason && x.Message == y.Message
	})
}

// placed is the node that holds all of some addresses; empty where none does.
func placed(held []ledger.Holding, ips []string) string {
	for _, h := range held {
		if len(ips) > 0 && !slices.ContainsFunc(ips, func(ip string) bool { return !slices.Contains(address.Strings(h.Addrs), ip) }) {
			return h.Node
		}
	}
	return ""
}
