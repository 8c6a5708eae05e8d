// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/google/btree"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/pool"
)

// NodeAddresses are the addresses of one owner on one node.
type NodeAddresses struct {
	Node  string
	Addrs []netip.Addr
}

// Ledger is safe for concurrent use. Create one with New.
type Ledger struct {
	mu sync.RWMutex
	// nodes contains every node that has a CiliumNode. Key: its name. Value: *node. It is a sync.Map because Available and
	// FreeShare read it without mu. Writers hold mu.
	nodes sync.Map
	// owners finds the Owned entries of a pod in all pools, arriving its MoveTarget entries, and away the Moved entries
	// that name it: the node there is the home.
	owners, away, arriving index
	// subnets are the subnets of all nodes. Value: the nodes that list the subnet; more than one is a mistake, and makes
	// the subnet disputed.
	subnets multimap[netip.Prefix, string]
	// ordered contains the keys of subnets, by their first address.
	ordered *btree.BTreeG[netip.Prefix]
	// lengths are the prefix lengths that subnets have or had.
	lengths map[int]bool
	// workloads finds the owners of the entries of a workload. Key: a pool.WorkloadKey. Value: owner -> the number of its
	// entries for the workload in all pools; never 0.
	workloads map[string]map[string]int
	// foreign are the addresses that a pool offers although they are in none of its node's subnets. Value: the nodes.
	foreign multimap[netip.Addr, string]
	// claims are the claims in flight, from Assume until Forget. Key: the UID of the pod; the next pod of the same name may
	// have a claim at the same time. Invariant: the addresses of a claim are in the assumed map of its node, under the same
	// UID or, if the pool gives them to the name, under that of another pod of the name.
	claims map[types.UID]Claim
	// claimants are the UIDs in claims. Key: the owner.
	claimants multimap[string, types.UID]
	// reserved is what FixedIPs reserve. An existing entry takes precedence over it. The nodes read it too.
	reserved *reservationIndex
}

// New returns an empty Ledger.
func New() *Ledger {
	return &Ledger{
		owners:    index{},
		away:      index{},
		arriving:  index{},
		subnets:   multimap[netip.Prefix, string]{},
		lengths:   map[int]bool{},
		foreign:   multimap[netip.Addr, string]{},
		workloads: map[string]map[string]int{},
		claims:    map[types.UID]Claim{},
		claimants: multimap[string, types.UID]{},
		ordered: btree.NewG(32, func(x, y netip.Prefix) bool {
			return cmp.Or(x.Addr().Compare(y.Addr()), cmp.Compare(x.Bits(), y.Bits())) < 0
		}),
		reserved: newReservationIndex(),
	}
}

// SetNode replaces a node's pool with a version that the watch delivered, and returns what changed. A version that is
// older than one of our own writes (see ObserveWrite) changes nothing.
func (l *Ledger) SetNode(p pool.NodePool) NodeChange {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, known := l.node(p.Name)
	if known && p.OlderThan(n.written) {
		return NodeChange{}
	}
	if known {
		n.written = pool.NodePool{}
	}
	return l.setNode(p)
}

// ObserveWrite replaces a node's pool with the answer of our own write to it, and returns what changed. The write
// counts at once: watch events that are older do not take it back. It changes nothing if the watch has not shown this
// CiliumNode yet, or has already shown this version or a newer one.
func (l *Ledger) ObserveWrite(p pool.NodePool) NodeChange {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, known := l.node(p.Name)
	if !known || n.pool.UID != p.UID || !n.pool.OlderThan(p) {
		return NodeChange{}
	}
	change := l.setNode(p)
	n.written = p
	return change
}

// setNode replaces a node's pool. If only the status of the CiliumNode changed, as with an agent's report, the indexes
// over the spec need no update.
func (l *Ledger) setNode(p pool.NodePool) NodeChange {
	n, known := l.node(p.Name)
	if !known {
		n = &node{assumed: map[netip.Addr]types.UID{}, reserved: l.reserved}
		// There may be claims on a node that was deleted and created again.
		for uid, c := range l.claims {
			if c.Node == p.Name {
				n.assume(uid, c.Addrs)
			}
		}
		l.nodes.Store(p.Name, n)
	}
	before, choosableBefore := n.pool, n.choosable()
	change := NodeChange{Appeared: !known, Status: !sameStatus(before, p)}
	if known && before.SameSpec(p) {
		n.pool = p
		if change.Status {
			n.count()
		}
	} else {
		change.Owners, change.Workloads = entryChanges(before, p)
		change.Entries = !maps.Equal(before.Entries, p.Entries)
		change.Subnets = slices.Concat(without(before.Subnets, p.Subnets), without(p.Subnets, before.Subnets))
		for a, e := range before.Entries {
			l.indexEntry(p.Name, a, e, false)
			if e.Allocatable() && !before.Home(a) {
				l.foreign.remove(a, p.Name)
			}
		}
		for a, e := range p.Entries {
			l.indexEntry(p.Name, a, e, true)
			if e.Allocatable() && !p.Home(a) {
				l.foreign.add(a, p.Name)
			}
		}
		n.pool = p
		n.count()
		l.moveSubnets(p.Name, before.Subnets, p.Subnets)
	}
	change.Freed = n.freedSince(choosableBefore)
	change.Fixed, change.Reported, change.ReportedOwners = reports(before, p)
	change.Fixed = change.Fixed || known && before.Unreported != p.Unreported
	return change
}

// RemoveNode forgets a node and all that its pool says.
func (l *Ledger) RemoveNode(name string) NodeChange {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.node(name); !known {
		return NodeChange{}
	}
	change := l.setNode(pool.NodePool{Name: name})
	change.Status, change.Fixed = true, true
	l.nodes.Delete(name)
	return change
}

// Node returns the newest known pool of a node.
func (l *Ledger) Node(name string) (pool.NodePool, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	n, ok := l.node(name)
	if !ok {
		return pool.NodePool{}, false
	}
	return n.pool, true
}

// Nodes returns the pools of all nodes, sorted by name.
func (l *Ledger) Nodes() []pool.NodePool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	var out []pool.NodePool
	l.nodes.Range(func(_, v any) bool {
		out = append(out, v.(*node).pool)
		return true
	})
	slices.SortFunc(out, func(a, b pool.NodePool) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Unreported reports whether the agent of a known node has not reported yet (pool.NodePool.Unreported). It does not lock
// the ledger, because the scheduler calls it for many nodes at once.
func (l *Ledger) Unreported(name string) bool {
	n, ok := l.node(name)
	return ok && n.unreported.Load()
}

// HasAvailable reports whether a claim on the node can choose an address of a family: one is available, and the agent has
// reported. It does not lock the ledger either.
func (l *Ledger) HasAvailable(name string, f address.Family) bool {
	n, ok := l.node(name)
	return ok && n.choosable()[familyIndex(f)] > 0
}

// Available returns how many addresses of a family a claim on the node can choose from once the agent has reported. It does
// not lock the ledger either.
func (l *Ledger) Available(name string, f address.Family) int64 {
	n, ok := l.node(name)
	if !ok {
		return 0
	}
	return n.available[familyIndex(f)].Load()
}

// FreeShare returns the share of a node's addresses of a family that are available: 1 if all are free, 0 if none is free or
// the node has no such subnet. It does not lock the ledger either.
func (l *Ledger) FreeShare(name string, f address.Family) float64 {
	n, ok := l.node(name)
	if !ok || n.size[familyIndex(f)].Load() == 0 {
		return 0
	}
	return float64(n.available[familyIndex(f)].Load()) / float64(n.size[familyIndex(f)].Load())
}

// node returns a node. Callers that use more than its atomics hold mu.
func (l *Ledger) node(name string) (*node, bool) {
	v, ok := l.nodes.Load(name)
	if !ok {
		return nil, false
	}
	return v.(*node), true
}

// NodeChange is the difference between two versions of a node's pool. The zero value is no difference.
type NodeChange struct {
	// Appeared is true if the node was not known before.
	Appeared bool
	// Freed is how many addresses became free for a claim, in the family in which more did.
	Freed int
	// Subnets are those that were added or removed.
	Subnets []netip.Prefix
	// Entries is true if an entry was added, removed or changed.
	Entries bool
	// Status is true if the addresses in use, the release handshakes or the probes changed.
	Status bool
	// Fixed is true if that concerns an address that is not dynamic, or is the first report of the agent, before which no
	// pod gets an address that has no entry.
	Fixed bool
	// Owners are the pods that an added, removed or changed entry names as owner or in a marker, sorted.
	Owners []string
	// Workloads are those that the entries of these pods name, sorted.
	Workloads []string
	// Reported and ReportedOwners are the workloads and the pods with an address whose use changed, sorted.
	Reported, ReportedOwners []string
}

// sameStatus reports whether two versions of a pool have the same addresses in use, release handshakes and probes.
func sameStatus(a, b pool.NodePool) bool {
	return maps.Equal(a.Used, b.Used) && maps.Equal(a.Handshakes, b.Handshakes) && slices.Equal(a.Probes, b.Probes)
}

// entryChanges returns the pods that a changed entry names, and their workloads.
func entryChanges(before, after pool.NodePool) (owners, workloads []string) {
	pods, found := sets.New[string](), sets.New[string]()
	note := func(from, in pool.NodePool) {
		for a, e := range from.Entries {
			owner, other := e.NamesPod(), in.Entries[a]
			if owner == "" || other == e || e.Kind == pool.Owned && other.OwnedBy(owner) {
				continue
			}
			pods.Insert(owner)
			if e.Workload != "" {
				found.Insert(e.Workload)
			}
		}
	}
	note(before, after)
	note(after, before)
	return sets.List(pods), sets.List(found)
}

// reports compares what an agent reports in two versions of a pool. fixed is true if that differs for an address that is
// not dynamic; workloads and owners are those of the entries of such addresses, sorted.
func reports(before, after pool.NodePool) (fixed bool, workloads, owners []string) {
	found, pods := sets.New[string](), sets.New[string]()
	note := func(a netip.Addr) {
		e, exists := after.Entries[a]
		if exists && e.Kind == pool.Dynamic {
			return
		}
		fixed = true
		if e.Workload != "" {
			found.Insert(e.Workload)
		}
		if e.Kind == pool.Owned {
			pods.Insert(e.Owner)
		}
	}
	differs(before.Used, after.Used, note)
	differs(before.Handshakes, after.Handshakes, note)
	return fixed, sets.List(found), sets.List(pods)
}

// differs calls note with the keys whose values differ.
func differs[V comparable](before, after map[netip.Addr]V, note func(netip.Addr)) {
	for a, was := range before {
		if now, ok := after[a]; !ok || now != was {
			note(a)
		}
	}
	for a := range after {
		if _, ok := before[a]; !ok {
			note(a)
		}
	}
}

// Size is the number of objects in a ledger.
type Size struct {
	// Nodes have a CiliumNode.
	Nodes int
	// Entries of their pools name a pod as the owner.
	Entries int
	// Claims are in flight.
	Claims int
}

// Size counts the objects in the ledger. It looks at every owner, so do not call it while a pod is scheduled.
func (l *Ledger) Size() Size {
	l.mu.RLock()
	defer l.mu.RUnlock()
	s := Size{Claims: len(l.claims)}
	l.nodes.Range(func(any, any) bool {
		s.Nodes++
		return true
	})
	for _, held := range l.owners {
		for _, h := range held {
			s.Entries += len(h.Addrs)
		}
	}
	return s
}
