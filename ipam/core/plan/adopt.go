package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
)

// Adoptable are the addresses of a pod that may be fixed as they are: it has them and will have
// them for a while. There are none while that is not sure.
func Adoptable(pod *corev1.Pod, ipv4Only bool) []netip.Addr {
	if pod.Spec.NodeName == "" || pod.Spec.HostNetwork || pod.DeletionTimestamp != nil ||
		pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return nil
	}
	var addrs []netip.Addr
	for _, ip := range pod.Status.PodIPs {
		a, err := address.Parse(ip.IP)
		if err != nil || ipv4Only && address.Of(a) != address.IPv4 {
			continue
		}
		addrs = append(addrs, a)
	}
	return addrs
}

// Strayed names the addresses that an identity keeps already and that its pod runs without: those
// are not given up for the ones that it has now. node is where they are kept; it is empty where they
// are in no pool. kept are the addresses of its record.
func Strayed(held []ledger.Holding, kept []Kept, has []netip.Addr) (node string, addrs []netip.Addr) {
	for _, h := range held {
		for _, a := range h.Addrs {
			if lacks(has, a) {
				node, addrs = h.Node, append(addrs, a)
			}
		}
	}
	for _, k := range kept {
		if lacks(has, k.Addr) && !slices.Contains(addrs, k.Addr) {
			addrs = append(addrs, k.Addr)
		}
	}
	return node, addrs
}

// lacks tells that the addresses have another one of the family in the place of a.
func lacks(has []netip.Addr, a netip.Addr) bool {
	return !slices.Contains(has, a) && slices.ContainsFunc(has, func(b netip.Addr) bool { return address.Of(a) == address.Of(b) })
}

// Adopt makes the edits that give a pod the addresses that it runs with. The caller has seen the pod
// have them at the API server, after which nobody else can until it is gone. One that was taken from the
// pod's name, and rests, the pod has from an agent that did not know yet. An error says which address it
// can't keep, for people.
func Adopt(n pool.Node, id identity.Identity, addrs []netip.Addr, at time.Time) ([]pool.Edit, error) {
	var edits []pool.Edit
	for _, a := range addrs {
		entry, listed := n.Entries[a]
		switch user, used := n.Used[a]; {
		case listed && entry.Owner == id.Key():
			if !entry.Ordinary() {
				continue
			}
			// On a strict node it was given for as long as the pod is there.
		case used && user != "" && user != id.Key():
			return nil, fmt.Errorf("the agent of node %s says that %s is used by %s", n.Name, a, user)
		case listed && !entry.Dynamic() && !tookFrom(entry, id.Key()):
			return nil, fmt.Errorf("the pool of node %s keeps %s for %s", n.Name, a, entry.Owner)
		case !n.Home(a):
			return nil, fmt.Errorf("%s is not in the subnets %v of node %s", a, n.PodCIDRs, n.Name)
		}
		edits = append(edits, n.Own(a, id.Entry(), at))
	}
	return edits, nil
}

// tookFrom tells whether an entry is of an address that was taken from an owner and rests.
func tookFrom(e pool.Entry, owner string) bool {
	from, ok := e.ReleasedFrom()
	return ok && from == owner
}

// GiveBack makes the edits that give a pod, which was bound to the node counting on what was taken from
// its name, addresses of those back: one of each family, which are at home on the node and have rested for
// the shortest time. The agent gives it no other once it has seen them. Nobody else can have had them in
// between. may tells whether the pod may have an address.
func GiveBack(n pool.Node, id identity.Identity, may func(netip.Addr) bool) []pool.Edit {
	var edits []pool.Edit
	for _, f := range address.Families {
		if _, has := n.OwnedBy(id.Key(), f); has {
			continue
		}
		var taken []netip.Addr
		for a, e := range n.Entries {
			if address.Of(a) == f && tookFrom(e, id.Key()) && n.Home(a) && !n.Withheld(a) && may(a) && (!n.InUse(a) || n.Used[a] == id.Key()) {
				taken = append(taken, a)
			}
		}
		if len(taken) == 0 {
			continue
		}
		latest := slices.MaxFunc(taken, func(a, b netip.Addr) int {
			x, _ := n.Entries[a].ReleasedAt()
			y, _ := n.Entries[b].ReleasedAt()
			return cmp.Or(x.Compare(y), b.Compare(a))
		})
		edits = append(edits, n.Set(latest, id.Entry()))
	}
	return edits
}
