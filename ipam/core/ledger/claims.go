package ledger

import (
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/request"
)

// Assume decides an address in each family for a pod on a node and keeps it until Forget. What the
// pools already give to the pod there is kept and completed. A pod that has a claim keeps it when
// asked again for the same node; on another node the claim is decided anew.
//
// The error is written for people: it is shown in the pod's events.
func (l *Ledger) Assume(uid types.UID, owner, nodeName string, families []address.Family) (Claim, error) {
	return l.AssumeFrom(uid, owner, nodeName, families, request.Addresses{})
}

// AssumeExact decides the given addresses for a pod: a reservation whose entries are not in the
// pool, or not all of them.
func (l *Ledger) AssumeExact(uid types.UID, owner, nodeName string, addrs []netip.Addr) (Claim, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget(uid)
	n, err := l.claimable(nodeName)
	if err != nil {
		return Claim{}, err
	}
	for _, a := range addrs {
		if !n.pool.Home(a) {
			return Claim{}, fmt.Errorf("its address %s is not in the subnets of node %s (%s)", a, nodeName, joinSubnets(n.pool.Subnets))
		}
		entry, exists := n.pool.Entries[a]
		_, released := entry.ReleasedAt()
		switch by, assumed := n.assumed[a]; {
		case assumed && by != uid:
			return Claim{}, fmt.Errorf("its address %s on node %s is being claimed for %s", a, nodeName, l.claims[by].Owner)
		case exists && entry.Owner == owner:
		case exists && !released:
			return Claim{}, fmt.Errorf("its address %s on node %s is %s", a, nodeName, heldBy(entry.Owner))
		case n.pool.InUse(a) && n.pool.Used[a] != owner:
			return Claim{}, fmt.Errorf("its address %s on node %s is still used by %s", a, nodeName, n.pool.Used[a])
		}
	}
	c := Claim{Owner: owner, Node: nodeName, Addrs: slices.Clone(addrs)}
	l.record(uid, c, n)
	return c, nil
}

// Claimed is the claim in flight of a pod.
func (l *Ledger) Claimed(uid types.UID) (Claim, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	c, ok := l.claims[uid]
	return c, ok
}

// Claims are all claims in flight.
func (l *Ledger) Claims() int {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return len(l.claims)
}

// Stands tells whether the pools already give all addresses of the claim to its pod.
func (l *Ledger) Stands(c Claim) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	held := l.owners[c.Owner][c.Node]
	for _, a := range c.Addrs {
		if !slices.Contains(held, a) {
			return false
		}
	}
	return true
}

// Forget gives the claim of a pod back, whether or not it was written meanwhile: an entry that
// stands is found again as what its owner holds. grew tells whether the node has more room for it.
func (l *Ledger) Forget(uid types.UID) (nodeName string, grew bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.forget(uid)
}

func (l *Ledger) forget(uid types.UID) (nodeName string, grew bool) {
	c, ok := l.claims[uid]
	if !ok {
		return "", false
	}
	delete(l.claims, uid)
	n, known := l.node(c.Node)
	if !known {
		return c.Node, false
	}
	before := n.rooms()
	n.forget(uid)
	return c.Node, n.grewSince(before)
}

func (l *Ledger) record(uid types.UID, c Claim, n *node) {
	l.claims[uid] = c
	n.assume(uid, c.Addrs)
}

func (l *Ledger) claimable(nodeName string) (*node, error) {
	n, ok := l.node(nodeName)
	if !ok {
		return nil, fmt.Errorf("node %s has no CiliumNode yet; is the Cilium agent running there?", nodeName)
	}
	if n.disputedWith != "" {
		return nil, fmt.Errorf("the subnets of node %s overlap those of node %s; nothing in them is handed out until one of the two is changed", nodeName, n.disputedWith)
	}
	return n, nil
}

func heldBy(owner string) string {
	if owner == "" {
		return "a dynamic entry of the pool, which any pod may be using"
	}
	return "held by " + owner
}

func joinSubnets(subnets []netip.Prefix) string {
	if len(subnets) == 0 {
		return "none yet"
	}
	out := subnets[0].String()
	for _, s := range subnets[1:] {
		out += ", " + s.String()
	}
	return out
}
