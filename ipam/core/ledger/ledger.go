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

// NodeAddresses contains the addresses of one owner in the pool of one node.
type NodeAddresses struct {
	Node  string
	Addrs []netip.Addr
}

// Ledger is the index over the pools of all nodes: see the package documentation. It is safe for concurrent use. Create it
// with New.
type Ledger struct {
	mu sync.RWMutex
	// nodes contains every node that has a CiliumNode. Methods such as Unreported and Available read it without mu. Writers hold
	// mu.
	nodes nodes
	// owners contains the addresses of Owned entries. Key: the owner. Value: its addresses, by the node whose pool has the
	// entries.
	//
	// moved contains the addresses of Moved entries. Key: the pod that the entries name. Value: its addresses, by the home
	// node, whose pool has the entries.
	//
	// moveTargets contains the addresses of MoveTarget entries. Key: the pod that the entries name. Value: its addresses, by
	// the node that they are about to move to, whose pool has the entries.
	owners, moved, moveTargets index
	// subnets contains the subnets of all nodes. Key: the subnet. Value: the names of the nodes that have the subnet in their
	// podCIDRs. More than one node is a configuration error: no address of such a subnet is claimed.
	subnets multimap[netip.Prefix, string]
	// ordered contains the keys of subnets, sorted by address and then by prefix length.
	ordered *btree.BTreeG[netip.Prefix]
	// lengths contains every prefix length that a subnet has or had. Key: the length. Value: always true.
	lengths map[int]bool
	// workloads contains the owners of the entries of each workload. Key: the pool.WorkloadKey. Value: a map from the owner
	// to the number of its entries for the workload in all pools, which is never 0.
	workloads map[string]map[string]int
	// carried contains the addresses with an allocatable entry in the pool of a node that is not their home. Key: the
	// address. Value: the names of these nodes.
	carried multimap[netip.Addr, string]
	// claims contains the claims in flight: those that were assumed and not forgotten. Key: the UID of the pod, because the
	// next pod of the same name may have a claim at the same time. Invariant: if the node of a claim is known, node.assumed
	// contains the addresses of the claim. The UID there is that of the claim or, if two pods of one name have claimed the
	// address of the same entry, that of one of the two pods.
	claims map[types.UID]Claim
	// claimsByOwner contains the keys of claims by owner. Key: the owner. Value: the UIDs of its pods.
	claimsByOwner multimap[string, types.UID]
	// reserved contains the reservations of FixedIPs. An existing entry takes precedence over a reservation. Every node
	// refers to the same index.
	reserved *reservationIndex
}

// New returns an empty Ledger.
func New() *Ledger {
	return &Ledger{
		owners:        index{},
		moved:         index{},
		moveTargets:   index{},
		subnets:       multimap[netip.Prefix, string]{},
		lengths:       map[int]bool{},
		carried:       multimap[netip.Addr, string]{},
		workloads:     map[string]map[string]int{},
		claims:        map[types.UID]Claim{},
		claimsByOwner: multimap[string, types.UID]{},
		ordered: btree.NewG(32, func(x, y netip.Prefix) bool {
			return cmp.Or(x.Addr().Compare(y.Addr()), cmp.Compare(x.Bits(), y.Bits())) < 0
		}),
		reserved: newReservationIndex(),
	}
}

// SetNode replaces the pool of a node with a version from the watch, and returns the difference. Until the watch has
// shown the last write of this program (see ObserveWrite), SetNode ignores versions that are older than that write.
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

// ObserveWrite replaces the pool of a node with the version that the API server returned for a write of this program, and
// returns the difference. The write counts at once, before the watch shows it. ObserveWrite ignores the version if the
// ledger does not know a CiliumNode with this name and UID, or has the same or a newer version of it.
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

// setNode replaces the pool of a node and returns the difference. It updates the indexes over the spec only if the spec
// changed, because most new versions are reports of an agent, which change only the status.
func (l *Ledger) setNode(p pool.NodePool) NodeChange {
	n, known := l.node(p.Name)
	if !known {
		n = &node{assumed: map[netip.Addr]types.UID{}, reserved: l.reserved}
		// A CiliumNode that was deleted and created again may have claims in flight.
		for uid, c := range l.claims {
			if c.Node == p.Name {
				n.assume(uid, c.Addrs)
			}
		}
		l.nodes.add(p.Name, n)
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
				l.carried.remove(a, p.Name)
			}
		}
		for a, e := range p.Entries {
			l.indexEntry(p.Name, a, e, true)
			if e.Allocatable() && !p.Home(a) {
				l.carried.add(a, p.Name)
			}
		}
		n.pool = p
		n.count()
		l.replaceSubnets(p.Name, before.Subnets, p.Subnets)
	}
	change.Freed = n.freedSince(choosableBefore)
	change.Fixed, change.Reported, change.ReportedOwners = reports(before, p)
	change.Fixed = change.Fixed || known && before.Unreported != p.Unreported
	return change
}

// RemoveNode removes a node and its pool, and returns the difference. Claims in flight on the node remain.
func (l *Ledger) RemoveNode(name string) NodeChange {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.node(name); !known {
		return NodeChange{}
	}
	change := l.setNode(pool.NodePool{Name: name})
	change.Status, change.Fixed = true, true
	l.nodes.remove(name)
	return change
}

// Node returns the newest known pool of a node. The result is false if the node is not known.
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
	out := make([]pool.NodePool, 0, l.nodes.count())
	for _, n := range l.nodes.all() {
		out = append(out, n.pool)
	}
	slices.SortFunc(out, func(a, b pool.NodePool) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Unreported reports whether the node is known and pool.NodePool.Unreported is true for it. It does not lock the ledger,
// because the scheduler calls it for many nodes at once.
func (l *Ledger) Unreported(name string) bool {
	n, ok := l.node(name)
	return ok && n.unreported.Load()
}

// HasAvailable reports whether a claim on the node can choose an address of a family: the agent has reported, and an address
// is available. It does not lock the ledger.
func (l *Ledger) HasAvailable(name string, f address.Family) bool {
	n, ok := l.node(name)
	return ok && n.choosable()[familyIndex(f)] > 0
}

// Available returns the number of addresses of a family from which a claim on the node can choose once the agent has
// reported; 0 for an unknown node. It does not lock the ledger.
func (l *Ledger) Available(name string, f address.Family) int64 {
	n, ok := l.node(name)
	if !ok {
		return 0
	}
	return n.available[familyIndex(f)].Load()
}

// SubnetSize returns the number of addresses of a family that pods may have in the subnets of a node, at most math.MaxInt64;
// 0 for an unknown node. It does not lock the ledger.
func (l *Ledger) SubnetSize(name string, f address.Family) int64 {
	n, ok := l.node(name)
	if !ok {
		return 0
	}
	return n.size[familyIndex(f)].Load()
}

// FreeShare returns the share of a node's addresses of a family that are available, from 0 to 1. It is 0 if the node is
// unknown or has no subnet of the family. It does not lock the ledger.
func (l *Ledger) FreeShare(name string, f address.Family) float64 {
	n, ok := l.node(name)
	if !ok || n.size[familyIndex(f)].Load() == 0 {
		return 0
	}
	return float64(n.available[familyIndex(f)].Load()) / float64(n.size[familyIndex(f)].Load())
}

// node returns a node; false if it is not known. Callers that use fields of the node other than the atomics must hold mu.
func (l *Ledger) node(name string) (*node, bool) {
	return l.nodes.load(name)
}

// NodeChange is the difference between two versions of a node's pool. The zero value means no difference.
type NodeChange struct {
	// Appeared is true if the node was not known before.
	Appeared bool
	// Freed is the increase in the number of addresses that a claim can choose, in the family with the larger increase; 0 if
	// there is no increase.
	Freed int
	// Subnets are the subnets that were added or removed.
	Subnets []netip.Prefix
	// Entries is true if an entry was added, removed or changed.
	Entries bool
	// Status is true if Used, Handshakes or Probes of the pool changed, or the node was removed.
	Status bool
	// Fixed is true if Used or Handshakes changed for an address without a dynamic entry, if Unreported changed, or if
	// the node was removed. Unreported counts because a claim can choose an address without an entry only after the agent
	// has reported.
	Fixed bool
	// Owners are the pods (pool.Entry.NamesPod) in the old and new versions of the entries that were added, removed or
	// changed, sorted. A change of an Owned entry that keeps its owner does not count.
	Owners []string
	// Workloads are the workloads of the entries that contributed to Owners, as pool.WorkloadKey, sorted.
	Workloads []string
	// Reported are the workloads, and ReportedOwners the pods, of the Owned entries of addresses for which Used or Handshakes
	// changed. Both are sorted.
	Reported, ReportedOwners []string
}

// IsEmpty reports whether the two versions are the same for all consumers of the ledger.
func (c NodeChange) IsEmpty() bool {
	return !c.Appeared && c.Freed == 0 && len(c.Subnets) == 0 && !c.Entries && !c.Status && !c.Fixed
}

// sameStatus reports whether Used, Handshakes and Probes of two versions of a pool are equal.
func sameStatus(a, b pool.NodePool) bool {
	return maps.Equal(a.Used, b.Used) && maps.Equal(a.Handshakes, b.Handshakes) && slices.Equal(a.Probes, b.Probes)
}

// entryChanges returns NodeChange.Owners and NodeChange.Workloads for two versions of a pool.
func entryChanges(before, after pool.NodePool) (owners, workloads []string) {
	pods, found := sets.New[string](), sets.New[string]()
	note := func(from, in pool.NodePool) {
		for a, e := range from.Entries {
			owner, other := e.NamesPod(), in.Entries[a]
			if owner == "" || other == e || e.Kind == pool.Owned && other.OwnedBy(owner) {
				continue
			}
			pods.Insert(owner)
			if e.Workload() != "" {
				found.Insert(e.Workload())
			}
		}
	}
	note(before, after)
	note(after, before)
	return sets.List(pods), sets.List(found)
}

// reports compares Used and Handshakes of two versions of a pool. fixed reports whether they differ for an address that has
// no dynamic entry in after. workloads and owners are those of the Owned entries of these addresses in after, sorted.
func reports(before, after pool.NodePool) (fixed bool, workloads, owners []string) {
	found, pods := sets.New[string](), sets.New[string]()
	note := func(a netip.Addr) {
		e, exists := after.Entries[a]
		if exists && e.Kind == pool.Dynamic {
			return
		}
		fixed = true
		if e.Workload() != "" {
			found.Insert(e.Workload())
		}
		if e.Kind == pool.Owned {
			pods.Insert(e.Owner())
		}
	}
	differs(before.Used, after.Used, note)
	differs(before.Handshakes, after.Handshakes, note)
	return fixed, sets.List(found), sets.List(pods)
}

// differs calls note for each key that is in only one of the maps or has different values in them.
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
	// Nodes is the number of nodes that have a CiliumNode.
	Nodes int
	// Entries is the number of Owned entries in the pools.
	Entries int
	// Claims is the number of claims in flight.
	Claims int
}

// Size returns the number of objects in the ledger. It iterates over all owners: do not call it while scheduling a pod.
func (l *Ledger) Size() Size {
	l.mu.RLock()
	defer l.mu.RUnlock()
	s := Size{Claims: len(l.claims), Nodes: l.nodes.count()}
	for _, held := range l.owners {
		for _, h := range held {
			s.Entries += len(h.Addrs)
		}
	}
	return s
}
