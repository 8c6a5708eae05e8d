// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"net/netip"
	"slices"
)

// Home returns the node whose subnet contains the address. ok is false if that subnet overlaps one of another node: two
// pools would decide over the address.
func (l *Ledger) Home(a netip.Addr) (name string, ok bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	name, _, ok = l.home(a)
	if n, known := l.node(name); ok && known && n.overlapsNode == "" {
		return name, true
	}
	return "", false
}

// HomesOf returns all nodes whose subnets contain the address: more than one if their subnets overlap.
func (l *Ledger) HomesOf(a netip.Addr) []string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.homes(a)
}

func (l *Ledger) homes(a netip.Addr) []string {
	var found []string
	for _, subnet := range l.around(a) {
		found = append(found, l.subnets[subnet]...)
	}
	return found
}

// home returns the first node whose subnet contains the address, disputed or not.
func (l *Ledger) home(a netip.Addr) (name string, subnet netip.Prefix, ok bool) {
	if subnets := l.around(a); len(subnets) > 0 {
		return l.subnets[subnets[0]][0], subnets[0], true
	}
	return "", netip.Prefix{}, false
}

// around returns the subnets that contain the address. It tries each length: there are few lengths and many subnets.
func (l *Ledger) around(a netip.Addr) []netip.Prefix {
	var found []netip.Prefix
	for bits := range l.lengths {
		// The error says that addresses of the family are shorter than that.
		subnet, err := a.Prefix(bits)
		if _, exists := l.subnets[subnet]; err == nil && exists {
			found = append(found, subnet)
		}
	}
	return found
}

// OverlapsWith returns another node whose subnets overlap those of the given one. No address of a disputed subnet is
// claimed.
func (l *Ledger) OverlapsWith(name string) (other string, disputed bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	n, ok := l.node(name)
	if !ok {
		return "", false
	}
	return n.overlapsNode, n.overlapsNode != ""
}

// moveSubnets updates the index of subnets, and the overlap of every node that the change may concern.
func (l *Ledger) moveSubnets(name string, before, after []netip.Prefix) {
	if slices.Equal(before, after) {
		return
	}
	for _, s := range before {
		if l.subnets.remove(s, name); len(l.subnets[s]) == 0 {
			l.ordered.Delete(s)
		}
	}
	for _, s := range after {
		l.subnets.add(s, name)
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

// overlapping returns the first other node, by name, with a subnet that overlaps the given ones; empty: none.
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
