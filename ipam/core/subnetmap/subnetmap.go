// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnetmap

import (
	"net/netip"
	"slices"

	"go4.org/netipx"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
)

// RowLength is the number of addresses in a row. Rows begin at multiples of RowLength, counted from the network address.
const RowLength = 64

// wholeUpTo is the maximum number of addresses of a subnet whose rows are all described: an IPv4 /22 or an IPv6 /120. In a
// larger subnet, only the rows that contain an address named by the pool, the agent or a FixedIP are described. Key: the
// number of bits of an address of the family.
var wholeUpTo = map[int]int64{32: 1 << 10, 128: 1 << 8}

// Cell is one address of a subnet, as the map shows it.
type Cell struct {
	Address netip.Addr `json:"address"`
	State   State      `json:"state"`
	// Holder is the pod of the address ("namespace/name") or another owner text; empty if there is none or it is unknown. For
	// an address in cooldown it is the previous pod.
	Holder string `json:"holder,omitempty"`
	// User is the owner according to the last report of the agent, if it differs from Holder.
	User string `json:"user,omitempty"`
	// Workload is the workload of a fixed address as namespace/Kind/name; empty if it is unknown.
	Workload string `json:"workload,omitempty"`
	// Node is the node whose pool carries an address that was moved away, or is about to carry it.
	Node string `json:"node,omitempty"`
}

// Row is up to RowLength consecutive addresses.
type Row struct {
	First netip.Addr
	Cells []Cell
	// Skipped is true if addresses between the previous row, or the beginning of the subnet, and this row are left out. Each of
	// these addresses is Free or Excluded.
	Skipped bool
}

// Subnet is the use of one subnet.
type Subnet struct {
	CIDR netip.Prefix `json:"cidr"`
	// Size is the number of addresses that pods may have, at most math.MaxInt64.
	Size int64 `json:"size"`
	// Counts are the numbers of addresses by state, without Free and Excluded.
	Counts map[State]int `json:"counts"`
	// Addresses are the addresses that are neither Free nor Excluded, in ascending order. Never null.
	Addresses []Cell `json:"addresses"`
	// Rows are the rows of the picture. If the subnet is too large to be drawn as a whole (see wholeUpTo), the rows in which
	// every address is Free or Excluded are left out.
	Rows []Row `json:"-"`
	// Cut is true if the last rows of the subnet are left out, or all rows.
	Cut bool `json:"-"`
}

// Node is the use of all subnets of a node.
type Node struct {
	Name    string   `json:"node"`
	Subnets []Subnet `json:"subnets"`
	// Carried are the addresses outside the subnets of the node that its pool or its agent names, in ascending order. Never
	// null.
	Carried []Cell `json:"carried"`
	// Overlaps is another node whose subnets overlap those of this node; empty if there is none.
	Overlaps string `json:"overlaps,omitempty"`
	// Unreported is true if the agent has not reported yet (pool.NodePool.Unreported): addresses in use may be missing.
	Unreported bool `json:"unreported,omitempty"`
}

// Of returns the use of the subnets of a node.
func Of(l *ledger.Ledger, n pool.NodePool) Node {
	result := Node{Name: n.Name, Subnets: []Subnet{}, Carried: []Cell{}, Unreported: n.Unreported}
	result.Overlaps, _ = l.OverlapsWith(n.Name)
	known := interesting(l, n)
	for _, s := range n.Subnets {
		result.Subnets = append(result.Subnets, subnetOf(l, n, s, known))
	}
	for _, a := range known {
		if !n.Home(a) {
			result.Carried = append(result.Carried, cellOf(l, n, a))
		}
	}
	return result
}

// interesting returns the addresses that the pool or the agent of n names, and those in its subnets that a FixedIP reserves,
// sorted.
func interesting(l *ledger.Ledger, n pool.NodePool) (known []netip.Addr) {
	for a := range n.Entries {
		known = append(known, a)
	}
	for a := range n.Used {
		known = append(known, a)
	}
	for a := range n.Handshakes {
		known = append(known, a)
	}
	for _, r := range l.ReservationsIn(n.Subnets...) {
		for _, a := range r.Addrs {
			if n.Home(a) {
				known = append(known, a)
			}
		}
	}
	slices.SortFunc(known, netip.Addr.Compare)
	return slices.Compact(known)
}

func subnetOf(l *ledger.Ledger, n pool.NodePool, cidr netip.Prefix, known []netip.Addr) Subnet {
	s := Subnet{CIDR: cidr, Size: address.Size(cidr), Counts: map[State]int{}, Addresses: []Cell{}}
	var firsts []netip.Addr
	last := netipx.PrefixLastIP(cidr)
	for _, a := range known {
		if !cidr.Contains(a) {
			continue
		}
		if first := rowOf(cidr, a); len(firsts) == 0 || firsts[len(firsts)-1] != first {
			firsts = append(firsts, first)
		}
		if cell := cellOf(l, n, a); cell.State != Free && cell.State != Excluded {
			s.Addresses = append(s.Addresses, cell)
			s.Counts[cell.State]++
		}
	}
	if s.Size <= wholeUpTo[cidr.Addr().BitLen()] {
		firsts = nil
		for first, done := cidr.Masked().Addr(), false; !done; first, done = next(first, last) {
			firsts = append(firsts, first)
		}
	}
	follows := cidr.Masked().Addr()
	for _, first := range firsts {
		row := Row{First: first, Skipped: first != follows}
		for a := first; len(row.Cells) < RowLength && cidr.Contains(a); a = a.Next() {
			row.Cells = append(row.Cells, cellOf(l, n, a))
		}
		follows = row.Cells[len(row.Cells)-1].Address.Next()
		s.Rows = append(s.Rows, row)
	}
	s.Cut = cidr.Contains(follows)
	return s
}

// next returns the first address of the row after the one that begins with first. done is true if first is the beginning of
// the last row, whose last address is last.
func next(first, last netip.Addr) (following netip.Addr, done bool) {
	for range RowLength {
		if first == last {
			return netip.Addr{}, true
		}
		first = first.Next()
	}
	return first, false
}

// rowOf returns the first address of the row with a. Subnets with fewer addresses than RowLength have one row.
func rowOf(cidr netip.Prefix, a netip.Addr) netip.Addr {
	bits := a.BitLen() - 6 // RowLength is 1<<6.
	return netip.PrefixFrom(a, max(bits, cidr.Bits())).Masked().Addr()
}

// cellOf returns the use of one address in the pool of a node.
func cellOf(l *ledger.Ledger, n pool.NodePool, a netip.Addr) Cell {
	c := Cell{Address: a}
	user, inUse := n.Used[a]
	e, exists := n.Entries[a]
	if !exists {
		c.Holder = user
		switch {
		case inUse && isNodeOwner(user):
			c.State = NodeOwned
		case inUse:
			c.State = Unlisted
		case n.IsReleasing(a):
			c.State = Releasing
		default:
			c.State = Free
			if owner, reserved := l.ReservedFor(a); reserved {
				c.State, c.Holder = Reserved, owner
			} else if !n.Usable(a) {
				c.State = Excluded
			}
		}
		return c
	}
	c.Holder, c.Workload, c.Node = e.Owner(), e.Workload(), e.Node()
	switch e.Kind {
	case pool.Dynamic:
		c.Holder = user
		switch {
		case inUse && isNodeOwner(user):
			c.State = NodeOwned
		case inUse:
			c.State = DynamicUsed
		default:
			c.State = DynamicFree
		}
	case pool.Owned:
		switch {
		case e.IsUnreserved():
			c.State = Unreserved
		case inUse:
			c.State = FixedUsed
		default:
			c.State = Fixed
		}
	case pool.NodeOwned:
		c.State = NodeOwned
	case pool.Cooldown:
		c.State, c.Holder = Cooldown, e.Pod()
	case pool.Moved:
		c.State, c.Holder = Moved, e.Pod()
	case pool.MoveTarget:
		c.State, c.Holder = MoveTarget, e.Pod()
	default:
		c.State = Foreign
	}
	if inUse && user != c.Holder {
		c.User = user
		if user == "" {
			c.User = pool.UnknownUser
		}
	}
	return c
}

func isNodeOwner(owner string) bool { return slices.Contains(pool.NodeOwners[:], owner) }
