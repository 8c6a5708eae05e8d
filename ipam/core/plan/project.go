package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
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

// onItsWay is the reason while an address moves to another node.
const onItsWay = "Away"

// obstacle is why an address of a record has no entry and gets none for now.
type obstacle struct {
	// reason is a word for machines, message a sentence for people.
	reason, message string
}

// projection finds where the addresses of a record that have no entry in any pool are to get one.
// All of them do or none does: what a pod holds in one family only, a scheduler would complete with
// any address of the other. Where something is in the way, that is told and waited for.
func projection(s Situation) (node string, addrs []netip.Addr, in *obstacle) {
	for _, p := range s.Places {
		if heldAnywhere(s.Held, p.Addr) {
			continue
		}
		if o := hindered(s, p); o != nil {
			return "", nil, o
		}
		if node != "" && node != p.Home {
			return "", nil, &obstacle{"TwoHomes", fmt.Sprintf("its addresses %s are in the subnets of two nodes, %s and %s, and no pod can be on both; delete it and ask for addresses of one node", strings.Join(s.Record.Spec.IPs, ", "), node, p.Home)}
		}
		node, addrs = p.Home, append(addrs, p.Addr)
	}
	return node, addrs, nil
}

func heldAnywhere(held []ledger.Holding, a netip.Addr) bool {
	return slices.ContainsFunc(held, func(h ledger.Holding) bool { return slices.Contains(h.Addrs, a) })
}

// hindered says what keeps an entry for the record from being written at a place; nil: nothing does.
func hindered(s Situation, p Place) *obstacle {
	owner := pool.OwnerKey(s.Record.Namespace, s.Record.Spec.PodName)
	switch {
	case p.Home == "":
		return &obstacle{"NoHome", fmt.Sprintf("%s is in no node's subnet, or in those of two; it waits for the one node that has it", p.Addr)}
	case p.Rival != "":
		return &obstacle{"HeldByRecord", fmt.Sprintf("%s is named by %s too, which comes first; delete one of the two", p.Addr, rival(s.Record.Namespace, p.Rival))}
	case p.User != "":
		return &obstacle{"UsedByPod", fmt.Sprintf("%s on node %s is used by %s; it can be had when that pod is gone and the agent no longer lists it", p.Addr, p.Home, named("pod", p.User, owner))}
	case p.Entry == nil:
		return another(s, p)
	case p.Entry.Owner == owner:
		return nil
	}
	at, released := p.Entry.ReleasedAt()
	switch {
	case released && RunsOn(s.Pod, p.Home, p.Addr):
		// It was taken from the name, and the pod has it from an agent that did not know yet: nobody else can.
		return another(s, p)
	case released:
		return &obstacle{"Resting", fmt.Sprintf("%s on node %s was released at %s and rests; it can be had when it has cooled down", p.Addr, p.Home, at.UTC().Format(time.RFC3339))}
	}
	if node, of, away := p.Entry.AwayAt(); away && of != owner {
		return &obstacle{"OwnedByPod", fmt.Sprintf("%s, at home on node %s, belongs to %s and is away on another node; remove one of the two", p.Addr, p.Home, named("pod", of, owner))}
	} else if away {
		return &obstacle{onItsWay, fmt.Sprintf("%s has left node %s for node %s, whose pool does not have it yet", p.Addr, p.Home, node)}
	}
	_, _, pod := p.Entry.Pod()
	switch {
	case p.Entry.Dynamic() && RunsOn(s.Pod, p.Home, p.Addr):
		// The pod itself has it, so that nobody else can.
		return nil
	case p.Entry.Dynamic():
		return &obstacle{"MayBeInUse", fmt.Sprintf("%s is a dynamic entry in the pool of node %s, which any pod may be using; it can be had when the agent there has given it back", p.Addr, p.Home)}
	case pod:
		return &obstacle{"OwnedByPod", fmt.Sprintf("%s on node %s belongs to %s; remove one of the two", p.Addr, p.Home, named("pod", p.Entry.Owner, owner))}
	}
	return &obstacle{"OwnedByNode", fmt.Sprintf("%s on node %s is kept for %q; delete the FixedIP and ask for another address", p.Addr, p.Home, p.Entry.Owner)}
}

// named is an owner as pool.Told has it, with what it is before its name.
func named(what, owner, asks string) string {
	if told := pool.Told(owner, asks); told != owner {
		return told
	}
	return what + " " + owner
}

// rival is another FixedIP, for whoever may know of it.
func rival(namespace, other string) string {
	if strings.HasPrefix(other, namespace+"/") {
		return "FixedIP " + other
	}
	return "a FixedIP of another namespace"
}

// reasonHoldsAnother: what is in the way of an entry is what the pool has for the pod itself, which goes when that does.
const reasonHoldsAnother = "HoldsAnother"

// another tells of an address of the family that the pod has at the same home beside the recorded one: a
// pool never gives two to one pod.
func another(s Situation, p Place) *obstacle {
	h, _ := heldOn(s.Held, p.Home)
	i := slices.IndexFunc(h.Addrs, func(a netip.Addr) bool { return address.Of(a) == address.Of(p.Addr) })
	if i < 0 {
		return nil
	}
	return &obstacle{reasonHoldsAnother, fmt.Sprintf("%s can't be its pod's on node %s beside %s, which the pool there has for it; delete the pod, and that goes back", p.Addr, p.Home, h.Addrs[i])}
}

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
		_, released := e.ReleasedAt()
		switch {
		case (exists && e.Dynamic() || released && n.Another(entry.Owner, addrs) == nil) && own(a) && (!used || user == entry.Owner):
			edits = append(edits, n.Own(a, entry, at))
		case released:
			// Nobody waits for this one so urgently that it may not cool down.
			return nil, fmt.Errorf("%s on node %s rests: %w", a, n.Name, pool.ErrTaken)
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
	case in != nil && in.reason == onItsWay:
		// It takes a moment, and is nobody's trouble.
	case in != nil:
		set(v1alpha1.ConditionProjected, metav1.ConditionFalse, in.reason, in.message)
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
