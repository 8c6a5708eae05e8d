// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"

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

// RemoteAddresses are addresses of an owner that are in the pool of another node, as the Moved entries at one home say.
type RemoteAddresses struct {
	// Home is the node whose pool has the Moved entries, At the node that they name.
	Home, At string
	Addrs    []netip.Addr
	// Leaving is true if the entries say that the addresses are about to leave At.
	Leaving bool
	// Generation is that of the home's CiliumNode.
	Generation int64
	// Barred is true if the pool at At has Cooldown entries for all of them, or if there is no such pool: a move there
	// that was decided before can't be completed.
	Barred bool
	// Listed is true if the agent at At reports one of them as in use. The pod may run there, whatever the entry says.
	Listed bool
}

// Away returns the moved addresses of an owner, by home and node.
func (l *Ledger) Away(owner string) []RemoteAddresses {
	l.mu.RLock()
	defer l.mu.RUnlock()
	var out []RemoteAddresses
	for _, h := range l.away[owner] {
		home := h.Node
		n, _ := l.node(home)
		for _, a := range h.Addrs {
			e := n.pool.Entries[a]
			at, leaves := e.Node, e.Leaving
			i := slices.IndexFunc(out, func(x RemoteAddresses) bool { return x.Home == home && x.At == at && x.Leaving == leaves })
			if i < 0 {
				i, out = len(out), append(out, RemoteAddresses{Home: home, At: at, Leaving: leaves, Generation: n.pool.Generation, Barred: true})
			}
			out[i].Addrs = append(out[i].Addrs, a)
			if there, known := l.node(at); known {
				out[i].Barred = out[i].Barred && there.pool.Entries[a].Kind == pool.Cooldown
				out[i].Listed = out[i].Listed || there.pool.InUse(a)
			}
		}
	}
	slices.SortFunc(out, func(a, b RemoteAddresses) int {
		return cmp.Or(strings.Compare(a.Home, b.Home), strings.Compare(a.At, b.At))
	})
	return out
}

// Arriving returns the addresses of an owner that have MoveTarget entries, by node name.
func (l *Ledger) Arriving(owner string) []NodeAddresses {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.arriving.holdings(owner)
}

// Slot is a slot of a workload as the pools have it: the addresses of one holder on one node.
type Slot struct {
	// Owner is the holder as pool entries name it. The pod may be long gone.
	Owner string
	NodeAddresses
	// User is the pod that uses one of the addresses, as the agent reports it; empty: none.
	User string
	// Claimed is true if a claim in flight has one of the addresses.
	Claimed bool
}

// Slots returns the slots of a workload (a pool.WorkloadKey), by node and address.
func (l *Ledger) Slots(workload string) []Slot {
	l.mu.RLock()
	defer l.mu.RUnlock()
	var found []Slot
	for owner := range l.workloads[workload] {
		for _, h := range l.owners[owner] {
			n, ok := l.node(h.Node)
			if !ok {
				continue
			}
			s := Slot{Owner: owner, NodeAddresses: NodeAddresses{Node: h.Node}}
			for _, a := range h.Addrs {
				if n.pool.Entries[a].Workload != workload {
					continue
				}
				s.Addrs = append(s.Addrs, a)
				if user, used := n.pool.Used[a]; used {
					s.User = user
				}
				if _, assumed := n.assumed[a]; assumed {
					s.Claimed = true
				}
			}
			if len(s.Addrs) > 0 {
				found = append(found, s)
			}
		}
	}
	slices.SortFunc(found, func(x, y Slot) int {
		return cmp.Or(strings.Compare(x.Node, y.Node), x.Addrs[0].Compare(y.Addrs[0]))
	})
	return found
}

// Workloads returns all workloads that entries of pools name, sorted.
func (l *Ledger) Workloads() []string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return slices.Sorted(maps.Keys(l.workloads))
}

// Held returns the addresses that pools give to the owner, by node name. There may be several nodes: a scheduler that died
// between claim and bind may have left an entry behind.
func (l *Ledger) Held(owner string) []NodeAddresses {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.owners.holdings(owner)
}

// HeldOn returns the addresses that the pool of a node gives to the owner, sorted.
func (l *Ledger) HeldOn(owner, node string) []netip.Addr {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return slices.Clone(l.owners.on(owner, node))
}

// Owners returns all pods with an Owned entry in any pool, sorted.
func (l *Ledger) Owners() []string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return slices.Sorted(maps.Keys(l.owners))
}

// OwnersAndMoving returns all pods that an Owned, Moved or MoveTarget entry names, sorted.
func (l *Ledger) OwnersAndMoving() []string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	all := maps.Clone(l.owners)
	maps.Copy(all, l.away)
	maps.Copy(all, l.arriving)
	return slices.Sorted(maps.Keys(all))
}

// OwnersOf returns the pods whose entries name the workload, sorted.
func (l *Ledger) OwnersOf(namespace, kind, name string) []string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return slices.Sorted(maps.Keys(l.workloads[pool.WorkloadKey(namespace, kind, name)]))
}

// OwnersOn returns the pods with an Owned entry in the pool of a node, sorted.
func (l *Ledger) OwnersOn(name string) []string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	n, ok := l.node(name)
	if !ok {
		return nil
	}
	found := sets.New[string]()
	for _, e := range n.pool.Entries {
		if e.Kind == pool.Owned {
			found.Insert(e.Owner)
		}
	}
	return sets.List(found)
}

// EntryOf returns the entry of the first address of h. It says what the addresses are for.
func (l *Ledger) EntryOf(h NodeAddresses) pool.Entry {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if n, ok := l.node(h.Node); ok && len(h.Addrs) > 0 {
		return n.pool.Entries[h.Addrs[0]]
	}
	return pool.Entry{}
}
