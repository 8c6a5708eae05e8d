package ledger

import (
	"fmt"
	"net/netip"
	"slices"

	"go4.org/netipx"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/request"
)

// Offers tells whether the first claim of a pod for which nothing is kept would succeed on the node
// now, of what is asked for and in each of the families.
func (l *Ledger) Offers(nodeName string, families []address.Family, asked request.Addresses) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	n, err := l.claimable(nodeName)
	if err != nil {
		return false
	}
	return !slices.ContainsFunc(families, func(f address.Family) bool {
		_, ok := n.pickFrom(f, asked)
		return !ok
	})
}

// Reach are the nodes whose subnets have addresses that are asked for, in each family in which
// some are; sorted. Whether one is free there is not looked at.
func (l *Ledger) Reach(asked request.Addresses) []string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	families := asked.Families()
	// Key: a node. Value: the families in which it has addresses that are asked for.
	reached := map[string]map[address.Family]bool{}
	for subnet, names := range l.subnets {
		if len(asked.Within(subnet)) == 0 {
			continue
		}
		for _, name := range names {
			if reached[name] == nil {
				reached[name] = map[address.Family]bool{}
			}
			reached[name][address.Of(subnet.Addr())] = true
		}
	}
	var out []string
	for name, has := range reached {
		if n, ok := l.node(name); ok && n.disputedWith == "" && len(has) == len(families) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// Obstacle says why the owner can't claim an address that it asks for, as the end of a sentence
// that names the address: "which belongs to db/other-0 on node-1; ask for another or free it".
// It is empty where nothing is in the way.
func (l *Ledger) Obstacle(owner string, a netip.Addr) string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	name, subnet, ok := l.home(a)
	if !ok {
		return "which is in no node's subnet; ask for one that is"
	}
	n, _ := l.node(name)
	if n.disputedWith != "" {
		return fmt.Sprintf("which is in the subnets of two nodes, %s and %s; it can be had when one of the two is changed", name, n.disputedWith)
	}
	if !address.Usable(subnet, a) {
		return fmt.Sprintf("which no pod can have: it is an end of the subnet %s of node %s; ask for another", subnet, name)
	}
	entry, exists := n.pool.Entries[a]
	_, _, pod := entry.Pod()
	_, away, _ := entry.AwayAt()
	by, assumed := n.assumed[a]
	keeper, keeps := l.kept.keeper(a)
	switch {
	case exists && entry.Owner == owner:
		return ""
	case exists && entry.Dynamic():
		return fmt.Sprintf("which is a dynamic entry in the pool of %s that any pod may be using; ask for one nearer to the top of its subnet %s", name, subnet)
	case exists && pod:
		return fmt.Sprintf("which belongs to %s on %s; ask for another or free it", pool.Told(entry.Owner, owner), name)
	case exists && away != "":
		return fmt.Sprintf("which belongs to %s, away on another node than %s; ask for another or free it", pool.Told(away, owner), name)
	case resting(entry):
		return fmt.Sprintf("which was released on %s and rests; it can be had when it has cooled down", name)
	case exists && !entry.Reusable():
		return fmt.Sprintf("which is kept on %s for %q; ask for another", name, entry.Owner)
	case assumed:
		return fmt.Sprintf("which is being claimed for %s on %s; ask for another or free it", pool.Told(l.claims[by].Owner, owner), name)
	case keeps && keeper.Owner != owner:
		return fmt.Sprintf("which %s keeps; ask for another or delete that", keptBy(keeper, owner))
	case n.pool.InUse(a):
		return fmt.Sprintf("which %s still uses on %s; it can be had when the agent there says that it is out of use", pool.Told(n.pool.Used[a], owner), name)
	case n.pool.Withheld(a):
		return fmt.Sprintf("which is being taken out of the pool of %s; it can be had when the agent there has confirmed that", name)
	}
	return ""
}

// pickFrom takes the next address of a family in the order of pick, from among those that are
// asked for. The walk ends at the first free address, so that its length is bounded by how many
// addresses the node has in use, not by how many are asked for.
func (n *node) pickFrom(f address.Family, asked request.Addresses) (netip.Addr, bool) {
	if len(asked.Ranges(f)) == 0 {
		return n.pick(f)
	}
	if n.room(f) == 0 {
		return netip.Addr{}, false
	}
	var parts []netipx.IPRange
	for _, s := range n.pool.Subnets {
		if address.Of(s.Addr()) == f {
			parts = append(parts, asked.Within(s)...)
		}
	}
	slices.SortFunc(parts, func(x, y netipx.IPRange) int { return y.To().Compare(x.To()) })
	for _, r := range parts {
		for a := r.To(); ; a = a.Prev() {
			if n.free(a) {
				return a, true
			}
			if a == r.From() {
				break
			}
		}
	}
	return n.reusable(f, asked.Contains)
}
