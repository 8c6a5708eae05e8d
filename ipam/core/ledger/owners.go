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

// multimap is a map with several values for each key. It contains no key without values.
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

// index contains the addresses of the entries that name a pod. Key: the owner. Value: one element for each node, sorted by
// node name, with sorted addresses; no list is empty. Most owners have one element, for which a map would take five times
// the memory.
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

// remove removes all addresses of an owner on a node.
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

// holdings returns a deep copy of the elements of an owner.
func (x index) holdings(owner string) []NodeAddresses {
	out := slices.Clone(x[owner])
	for i := range out {
		out[i].Addrs = slices.Clone(out[i].Addrs)
	}
	return out
}

// indexEntry adds an entry of a node's pool to the indexes by owner and by workload, or removes it if add is false. A
// removal removes all addresses of the owner on the node, so the caller must remove all entries of the pool before it adds
// entries again.
func (l *Ledger) indexEntry(name string, a netip.Addr, e pool.Entry, add bool) {
	in := l.owners
	switch e.Kind {
	case pool.Moved:
		in = l.moved
	case pool.MoveTarget:
		in = l.moveTargets
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
	if e.Workload() == "" {
		return
	}
	if l.workloads[e.Workload()] == nil {
		l.workloads[e.Workload()] = map[string]int{}
	}
	owners := l.workloads[e.Workload()]
	if owners[e.Owner()] += count; owners[e.Owner()] == 0 {
		delete(owners, e.Owner())
	}
	if len(owners) == 0 {
		delete(l.workloads, e.Workload())
	}
}

// RemoteAddresses are addresses of one owner whose Moved entries are at the same home and have the same node and the same
// value of Leaving.
type RemoteAddresses struct {
	// Home is the node whose pool has the Moved entries. At is the node that the entries name.
	Home, At string
	Addrs    []netip.Addr
	// Leaving is pool.Entry.Leaving of the entries: the addresses are about to leave At.
	Leaving bool
	// Generation is the generation of the home's CiliumNode.
	Generation int64
	// Fenced is true if the pool of At has Cooldown entries for all Addrs, or if At has no CiliumNode. A move to At that
	// was decided earlier can't be completed then.
	Fenced bool
	// Used is true if the agent of At reports one of Addrs as used. The pod may run there, whatever entry the pool of At has.
	Used bool
}

// Moved returns the addresses of an owner that have Moved entries, sorted by home and by the node that they were moved to.
func (l *Ledger) Moved(owner string) []RemoteAddresses {
	l.mu.RLock()
	defer l.mu.RUnlock()
	var out []RemoteAddresses
	for _, h := range l.moved[owner] {
		home := h.Node
		n, _ := l.node(home)
		for _, a := range h.Addrs {
			e := n.pool.Entries[a]
			at, leaves := e.Node(), e.Leaving
			i := slices.IndexFunc(out, func(x RemoteAddresses) bool { return x.Home == home && x.At == at && x.Leaving == leaves })
			if i < 0 {
				i, out = len(out), append(out, RemoteAddresses{Home: home, At: at, Leaving: leaves, Generation: n.pool.Generation, Fenced: true})
			}
			out[i].Addrs = append(out[i].Addrs, a)
			if there, known := l.node(at); known {
				out[i].Fenced = out[i].Fenced && there.pool.Entries[a].Kind == pool.Cooldown
				out[i].Used = out[i].Used || there.pool.InUse(a)
			}
		}
	}
	slices.SortFunc(out, func(a, b RemoteAddresses) int {
		return cmp.Or(strings.Compare(a.Home, b.Home), strings.Compare(a.At, b.At))
	})
	return out
}

// MoveTargets returns the addresses of an owner that have MoveTarget entries, sorted by node name.
func (l *Ledger) MoveTargets(owner string) []NodeAddresses {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.moveTargets.holdings(owner)
}

// Slot is a slot of a workload according to the pools: the addresses of one holder on one node.
type Slot struct {
	// Owner is the holder, "namespace/name", as pool entries name it. That pod may no longer exist.
	Owner string
	NodeAddresses
	// User is the owner that the agent reports for a used address of the slot; empty if no address is used, or if the agent
	// reports no owner.
	User string
	// Claimed is true if a claim in flight contains one of the addresses.
	Claimed bool
}

// Slots returns the slots of a workload (a pool.WorkloadKey), sorted by node and by the lowest address.
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
				if n.pool.Entries[a].Workload() != workload {
					continue
				}
				s.Addrs = append(s.Addrs, a)
				if user, used := n.pool.Used[a]; used {
					s.User = cmp.Or(s.User, user)
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

// Workloads returns all workloads that pool entries name, as pool.WorkloadKey, sorted.
func (l *Ledger) Workloads() []string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return slices.Sorted(maps.Keys(l.workloads))
}

// Held returns the addresses of the Owned entries of a pod, sorted by node name. There may be several nodes, for example if
// a scheduler died between claim and bind and left an entry behind.
func (l *Ledger) Held(owner string) []NodeAddresses {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.owners.holdings(owner)
}

// HeldOn returns the addresses of the Owned entries of a pod in the pool of a node, sorted.
func (l *Ledger) HeldOn(owner, node string) []netip.Addr {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return slices.Clone(l.owners.on(owner, node))
}

// Owners returns the pods that have an Owned entry in any pool, sorted.
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
	maps.Copy(all, l.moved)
	maps.Copy(all, l.moveTargets)
	return slices.Sorted(maps.Keys(all))
}

// OwnersOf returns the pods that have an entry that names the workload, sorted.
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
			found.Insert(e.Owner())
		}
	}
	return sets.List(found)
}

// EntryOf returns the pool entry of the first address of h. Callers use its purpose for all addresses of h. It returns the
// zero Entry if h has no address, or if the node or the entry is not known.
func (l *Ledger) EntryOf(h NodeAddresses) pool.Entry {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.entryOf(h)
}

func (l *Ledger) entryOf(h NodeAddresses) pool.Entry {
	if n, ok := l.node(h.Node); ok && len(h.Addrs) > 0 {
		return n.pool.Entries[h.Addrs[0]]
	}
	return pool.Entry{}
}
