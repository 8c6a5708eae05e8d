// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package ledger is the index over the pools of all nodes, together with the claims that are
// decided but not yet seen in a pool and with what FixedIPs keep: who holds which address on which
// node, where an address is at home, how much room a node has, and which address the next claim
// takes.
//
// It is pure: it has no clock, no goroutine and no client, so that a test can step it. It is fed
// from watches and read by the scheduler plugin and the controller. It decides nothing for good:
// the arbiter of an address is the pool of its home node, at the API server.
package ledger

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/google/btree"
	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/pool"
)

// NodeAddresses is what one owner holds on one node.
type NodeAddresses struct {
	Node  string
	Addrs []netip.Addr
}

// Claim is a set of addresses, at most one a family, that was decided for a pod.
type Claim struct {
	// Owner is the pod as pool entries name it: "namespace/name".
	Owner string
	Node  string
	Addrs []netip.Addr
	// From is the owner whose entries the claim takes over; empty where it is nobody's successor.
	From string
}

// Ledger is safe for concurrent use. The zero value is not ready: use New.
type Ledger struct {
	mu sync.RWMutex
	// nodes holds every node that has a CiliumNode. Key: its name. Readers of the room of a node
	// go past mu, hence the sync.Map; writers hold mu. Value: *node.
	nodes sync.Map
	// owners is the reverse of the entries of all nodes.
	// Invariant: a pair is in it exactly while the entry of that address on that node has that
	// owner and the owner is a pod.
	owners index
	// away and arriving are the same of the marks that moves leave in pools (see pool.Move): owner →
	// node → addresses, sorted. Of away the node is the home, and where they are its mark says.
	away, arriving index
	// subnets are the subnets of all nodes. Key: a subnet. Value: the nodes that list it; more than
	// one is a mistake that makes the subnet disputed.
	subnets map[netip.Prefix][]string
	// ordered are the keys of subnets by their first address.
	ordered *btree.BTreeG[netip.Prefix]
	// lengths are those that subnets have or had. Key: the bits of a prefix.
	lengths map[int]bool
	// workloads are the pods that hold addresses for each workload. Key: the resource of entries. Value:
	// owner → how many of its entries, on all nodes, have that resource; never 0.
	workloads map[string]map[string]int
	// foreign are the nodes whose pools offer an address that is in none of their own subnets. Key:
	// the address. Value: the nodes, sorted; never none.
	foreign map[netip.Addr][]string
	// claims are in flight: decided by one of the Assume methods, not yet forgotten. Key: the pod's UID,
	// since a pod of the same name may follow while the claim of the first still stands. Invariant: the
	// addresses of a claim are in the assumed map of its node, under the same UID or, where the pool
	// gives them to the name, under that of another pod of the name.
	claims map[types.UID]Claim
	// claimants are the pods with a claim for each owner. Invariant: a UID is in it exactly while claims has it.
	claimants map[string][]types.UID
	// kept is what FixedIPs keep. It is nobody else's, entry or not, as far as this ledger decides;
	// where an entry stands, that comes first. The nodes look into it too.
	kept *reservationIndex
}

// New is an empty ledger.
func New() *Ledger {
	return &Ledger{
		owners:    index{},
		away:      index{},
		arriving:  index{},
		subnets:   map[netip.Prefix][]string{},
		lengths:   map[int]bool{},
		foreign:   map[netip.Addr][]string{},
		workloads: map[string]map[string]int{},
		claims:    map[types.UID]Claim{},
		claimants: map[string][]types.UID{},
		ordered: btree.NewG(32, func(x, y netip.Prefix) bool {
			if c := x.Addr().Compare(y.Addr()); c != 0 {
				return c < 0
			}
			return x.Bits() < y.Bits()
		}),
		kept: newKept(),
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
// over the spec stand as they are.
func (l *Ledger) setNode(p pool.NodePool) NodeChange {
	n, known := l.node(p.Name)
	if !known {
		n = newNode(l.kept)
		// A claim may stand on a node that was deleted and created again.
		for uid, c := range l.claims {
			if c.Node == p.Name {
				n.assume(uid, c.Addrs)
			}
		}
		l.nodes.Store(p.Name, n)
	}
	before, roomBefore := n.pool, n.rooms()
	change := NodeChange{Appeared: !known, Status: !sameStatus(before, p)}
	if known && before.SameSpec(p) {
		n.set(p, change.Status)
	} else {
		change.Moved, change.Owners, change.Workloads = diff(before, p)
		change.Entries = !maps.Equal(before.Entries, p.Entries)
		change.Subnets = subnetChanges(before.Subnets, p.Subnets)
		l.unindexOwners(p.Name, before)
		l.indexOwners(p)
		l.moveForeign(before, p)
		n.set(p, true)
		l.moveSubnets(p.Name, before.Subnets, p.Subnets)
	}
	change.Grew, change.Freed = n.grewSince(roomBefore), n.freedSince(roomBefore)
	change.Fixed, change.Reported, change.ReportedOwners = reports(before, p)
	return change
}

// RemoveNode forgets a node. Who held addresses there holds them no more.
func (l *Ledger) RemoveNode(name string) NodeChange {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, known := l.node(name)
	if !known {
		return NodeChange{}
	}
	var change NodeChange
	change.Moved, change.Owners, change.Workloads = diff(n.pool, pool.NodePool{Name: name})
	change.Entries, change.Status, change.Fixed = len(n.pool.Entries) > 0, true, true
	change.Subnets = n.pool.Subnets
	l.unindexOwners(name, n.pool)
	l.moveForeign(n.pool, pool.NodePool{Name: name})
	l.nodes.Delete(name)
	l.moveSubnets(name, n.pool.Subnets, nil)
	return change
}

// Node is the pool of a node as it was last taken in.
func (l *Ledger) Node(name string) (pool.NodePool, bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	n, ok := l.node(name)
	if !ok {
		return pool.NodePool{}, false
	}
	return n.pool, true
}

// Nodes are the pools of all nodes, by name.
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

// Held is what the pools give to the owner, by node name. More than one holding is possible: a
// scheduler that died between claim and bind may have left one behind.
func (l *Ledger) Held(owner string) []NodeAddresses {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.owners.holdings(owner)
}

// Owners are all pods that hold an address somewhere, sorted.
func (l *Ledger) Owners() []string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return slices.Sorted(maps.Keys(l.owners))
}

// OwnersAndMoving are all pods that hold an address somewhere or that a mark of a move names, sorted.
func (l *Ledger) OwnersAndMoving() []string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	all := maps.Clone(l.owners)
	maps.Copy(all, l.away)
	maps.Copy(all, l.arriving)
	return slices.Sorted(maps.Keys(all))
}

// Available is how many addresses of a family a claim on the node can choose from. It takes no lock
// that others hold for long: the scheduler asks it for many nodes at once.
func (l *Ledger) Available(name string, f address.Family) int64 {
	n, ok := l.node(name)
	if !ok {
		return 0
	}
	return n.room(f)
}

// FreeShare is the part of a node's addresses of a family that a claim can choose from: 1 where all
// are free, 0 where none is or the node has no such subnet. It takes no lock either.
func (l *Ledger) FreeShare(name string, f address.Family) float64 {
	n, ok := l.node(name)
	if !ok || n.size(f) == 0 {
		return 0
	}
	return float64(n.room(f)) / float64(n.size(f))
}

// node needs mu where more than atomics of the node is touched.
func (l *Ledger) node(name string) (*node, bool) {
	v, ok := l.nodes.Load(name)
	if !ok {
		return nil, false
	}
	return v.(*node), true
}

// index finds what each pod has that entries name. Key: the owner. Value: a holding for each node, by
// node name, and its addresses sorted. No list is empty. Most owners have one holding, for which a map
// would take five times the memory.
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

// on are the addresses that an owner has on a node, sorted.
func (x index) on(owner, node string) []netip.Addr {
	if i, ok := x.find(owner, node); ok {
		return x[owner][i].Addrs
	}
	return nil
}

// holdings are what the index has of an owner, by node name.
func (x index) holdings(owner string) []NodeAddresses {
	out := slices.Clone(x[owner])
	for i := range out {
		out[i].Addrs = slices.Clone(out[i].Addrs)
	}
	return out
}

// named is the pod that an entry names, as its owner or in a mark, and the index that it belongs in.
func (l *Ledger) named(e pool.Entry) (owner string, in index) {
	owner = e.NamesPod()
	switch {
	case owner == "":
		return "", nil
	case e.Kind == pool.Owned:
		return owner, l.owners
	case e.Kind == pool.Moved:
		return owner, l.away
	default:
		return owner, l.arriving
	}
}

func (l *Ledger) indexOwners(p pool.NodePool) {
	for a, e := range p.Entries {
		if owner, in := l.named(e); in != nil {
			in.add(owner, p.Name, a)
		}
		l.countWorkload(e, 1)
	}
}

func (l *Ledger) unindexOwners(name string, p pool.NodePool) {
	for _, e := range p.Entries {
		l.countWorkload(e, -1)
		if owner, in := l.named(e); in != nil {
			in.remove(owner, name)
		}
	}
}

// OwnersOf are the pods that hold an address for a workload: the entries whose resource names it.
// Sorted.
func (l *Ledger) OwnersOf(namespace, kind, name string) []string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return slices.Sorted(maps.Keys(l.workloads[pool.WorkloadKey(namespace, kind, name)]))
}

// EntryOf returns the entry of the first address of a holding: it says what the addresses are for.
func (l *Ledger) EntryOf(h NodeAddresses) pool.Entry {
	l.mu.RLock()
	defer l.mu.RUnlock()
	n, ok := l.node(h.Node)
	if !ok || len(h.Addrs) == 0 {
		return pool.Entry{}
	}
	return n.pool.Entries[h.Addrs[0]]
}

// OwnersOn are the pods that hold an address on a node, sorted.
func (l *Ledger) OwnersOn(name string) []string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	n, ok := l.node(name)
	if !ok {
		return nil
	}
	found := map[string]bool{}
	for _, e := range n.pool.Entries {
		if e.Kind == pool.Owned {
			found[e.Owner] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}
