// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"maps"
	"net/netip"
	"slices"

	"fixedip.io/fixedip/ipam/core/pool"
)

// Home is the node whose subnet has the address. An address in a subnet that overlaps another
// node's is at home nowhere: two pools would decide over it.
func (l *Ledger) Home(a netip.Addr) (name string, ok bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	name, _, ok = l.home(a)
	if n, known := l.node(name); ok && known && n.overlapsNode == "" {
		return name, true
	}
	return "", false
}

// homes are all nodes whose subnets have the address: more than one where they are disputed.
func (l *Ledger) homes(a netip.Addr) []string {
	var found []string
	for _, subnet := range l.around(a) {
		found = append(found, l.subnets[subnet]...)
	}
	return found
}

// home is the first node whose subnet has the address, disputed or not.
func (l *Ledger) home(a netip.Addr) (name string, subnet netip.Prefix, ok bool) {
	if subnets := l.around(a); len(subnets) > 0 {
		return l.subnets[subnets[0]][0], subnets[0], true
	}
	return "", netip.Prefix{}, false
}

// around are the subnets that have the address. Their lengths are few, and the nodes many.
func (l *Ledger) around(a netip.Addr) []netip.Prefix {
	var found []netip.Prefix
	for bits := range l.lengths {
		// An error: an address of the family is not so long.
		subnet, err := a.Prefix(bits)
		if _, exists := l.subnets[subnet]; err == nil && exists {
			found = append(found, subnet)
		}
	}
	return found
}

// OverlapsWith names another node whose subnets overlap those of the given one. Nothing in a disputed
// subnet is handed out.
func (l *Ledger) OverlapsWith(name string) (other string, disputed bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	n, ok := l.node(name)
	if !ok {
		return "", false
	}
	return n.overlapsNode, n.overlapsNode != ""
}

// moveSubnets brings the index of subnets up to date and judges anew every node that the change
// may concern.
func (l *Ledger) moveSubnets(name string, before, after []netip.Prefix) {
	if slices.Equal(before, after) {
		return
	}
	for _, s := range before {
		names := slices.DeleteFunc(l.subnets[s], func(n string) bool { return n == name })
		if len(names) == 0 {
			delete(l.subnets, s)
			l.ordered.Delete(s)
		} else {
			l.subnets[s] = names
		}
	}
	for _, s := range after {
		l.subnets[s] = append(l.subnets[s], name)
		l.ordered.ReplaceOrInsert(s)
		l.lengths[s.Bits()] = true
	}
	concerned := map[string]bool{name: true}
	for s, names := range l.subnets {
		if overlaps(s, before) || overlaps(s, after) {
			for _, n := range names {
				concerned[n] = true
			}
		}
	}
	for c := range concerned {
		if n, ok := l.node(c); ok {
			n.overlapsNode = l.overlapping(c, n.pool.Subnets)
			n.count()
		}
	}
}

// overlapping is the first other node, by name, that has a subnet in common with the given ones.
func (l *Ledger) overlapping(name string, subnets []netip.Prefix) string {
	first := ""
	for s, names := range l.subnets {
		if !overlaps(s, subnets) {
			continue
		}
		for _, n := range names {
			if n != name && (first == "" || n < first) {
				first = n
			}
		}
	}
	return first
}

func overlaps(s netip.Prefix, with []netip.Prefix) bool {
	return slices.ContainsFunc(with, s.Overlaps)
}

// NodeChange is the difference between two versions of a node's pool. The zero Change is none.
type NodeChange struct {
	// Appeared is true if the node was not known before.
	Appeared bool
	// Grew is true if a claim can choose from more addresses of some family than before.
	Grew bool
	// Freed is how many addresses became free for a claim, in the family in which more did.
	Freed int
	// Moved is true if the node's subnets changed.
	Moved bool
	// Subnets are those that came or went.
	Subnets []netip.Prefix
	// Entries is true if an entry was added, removed or changed.
	Entries bool
	// Status is true if the addresses in use, the release handshakes or the probes changed.
	Status bool
	// Fixed is true if that concerns an address that is not dynamic, or if the agent has acknowledged an entry.
	Fixed bool
	// Owners are the pods that an added, removed or changed entry names as owner or in a marker, sorted.
	Owners []string
	// Workloads are those that the entries of these pods name, sorted.
	Workloads []string
	// Reported and ReportedOwners are the workloads and the pods with an address whose use changed, sorted.
	Reported, ReportedOwners []string
}

// Any reports whether anything changed that a decision can depend on.
func (c NodeChange) Any() bool {
	return c.Appeared || c.Grew || c.Moved || c.Entries || c.Status || len(c.Owners) > 0
}

// sameStatus reports whether two versions of a pool have the same addresses in use, release handshakes and probes.
func sameStatus(a, b pool.NodePool) bool {
	return maps.Equal(a.Used, b.Used) && maps.Equal(a.Handshakes, b.Handshakes) &&
		len(a.Probes) == len(b.Probes) && !slices.ContainsFunc(a.Probes, func(p netip.Addr) bool { return !slices.Contains(b.Probes, p) })
}

// diff compares the spec of two versions of a node's pool.
func diff(before, after pool.NodePool) (moved bool, ownersChanged, workloadsChanged []string) {
	owners, workloads := map[string]bool{}, map[string]bool{}
	note := func(from, in pool.NodePool) {
		for a, e := range from.Entries {
			owner, other := e.NamesPod(), in.Entries[a]
			if owner == "" || other == e || e.Kind == pool.Owned && other.OwnedBy(owner) {
				continue
			}
			owners[owner] = true
			if e.Workload != "" {
				workloads[e.Workload] = true
			}
		}
	}
	note(before, after)
	note(after, before)
	return !slices.Equal(before.Subnets, after.Subnets), slices.Sorted(maps.Keys(owners)), slices.Sorted(maps.Keys(workloads))
}

// HomesOf returns all nodes whose subnets contain the address: more than one if their subnets overlap.
func (l *Ledger) HomesOf(a netip.Addr) []string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.homes(a)
}
