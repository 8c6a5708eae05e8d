// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"net/netip"
	"slices"
	"strings"

	"fixedip.io/fixedip/ipam/core/pool"
)

// multimap contains the values of each key. There is no key without values.
type multimap[K, V comparable] map[K][]V

func (s multimap[K, V]) add(k K, v V) { s[k] = append(s[k], v) }

func (s multimap[K, V]) remove(k K, v V) {
	s[k] = slices.DeleteFunc(s[k], func(x V) bool { return x == v })
	if len(s[k]) == 0 {
		delete(s, k)
	}
}

// without returns the values of a that are not in b.
func without[T comparable](a, b []T) []T {
	return slices.DeleteFunc(slices.Clone(a), func(x T) bool { return slices.Contains(b, x) })
}

// index finds the addresses of each pod that entries name. Key: the owner. Value: sorted by node, and the addresses of
// each sorted; no list is empty. Most owners have one element, for which a map would take five times the memory.
type index map[string][]NodeAddresses

func (x index) find(owner, node string) (int, bool) {
	return slices.BinarySearchFunc(x[owner], node, func(h NodeAddresses, node string) int { return strings.Compare(h.Node, node) })
}

func (x index) add(owner, node string, a netip.Addr) {
	i, ok := x.find(owner, node)
	if !ok {
		x[owner] = slices.Insert(slices.Clip(x[owner]), i, NodeAddresses{Node: node, Addrs: []netip.Addr{a}})
		return
	}
	h := &x[owner][i]
	h.Addrs = append(slices.Clip(h.Addrs), a)
	slices.SortFunc(h.Addrs, netip.Addr.Compare)
}

// remove drops all addresses of an owner on a node.
func (x index) remove(owner, node string) {
	i, ok := x.find(owner, node)
	switch {
	case !ok:
	case len(x[owner]) == 1:
		delete(x, owner)
	default:
		x[owner] = slices.Delete(x[owner], i, i+1)
	}
}

// on returns the addresses of an owner on a node, sorted.
func (x index) on(owner, node string) []netip.Addr {
	if i, ok := x.find(owner, node); ok {
		return x[owner][i].Addrs
	}
	return nil
}

// holdings returns a copy of what the index has of an owner.
func (x index) holdings(owner string) []NodeAddresses {
	out := slices.Clone(x[owner])
	for i := range out {
		out[i].Addrs = slices.Clone(out[i].Addrs)
	}
	return out
}

// indexEntry adds an entry of a node's pool to the indexes by owner and by workload. Otherwise it removes the owner of the
// entry: it has to be called for all entries of the pool then.
func (l *Ledger) indexEntry(name string, a netip.Addr, e pool.Entry, add bool) {
	in := l.owners
	switch e.Kind {
	case pool.Moved:
		in = l.away
	case pool.MoveTarget:
		in = l.arriving
	}
	owner, count := e.NamesPod(), -1
	switch {
	case add:
		count = 1
		if owner != "" {
			in.add(owner, name, a)
		}
	case owner != "":
		in.remove(owner, name)
	}
	if e.Workload == "" {
		return
	}
	if l.workloads[e.Workload] == nil {
		l.workloads[e.Workload] = map[string]int{}
	}
	owners := l.workloads[e.Workload]
	if owners[e.Owner] += count; owners[e.Owner] == 0 {
		delete(owners, e.Owner)
	}
	if len(owners) == 0 {
		delete(l.workloads, e.Workload)
	}
}
