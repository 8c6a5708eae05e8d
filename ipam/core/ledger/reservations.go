// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/btree"
	"k8s.io/apimachinery/pkg/util/sets"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/pool"
)

// Reservation contains the addresses that one FixedIP reserves for its pod. They need not have entries: the FixedIP may have
// been created before its pod or restored from a backup, or an entry may have been lost.
type Reservation struct {
	// Record is the FixedIP, "namespace/name"; empty: there is no reservation.
	Record string
	// Since is the creation time of the FixedIP. If two FixedIPs reserve one address, the older one takes precedence.
	Since time.Time
	// Owner is the pod, "namespace/name", as pool entries name it.
	Owner string
	Addrs []netip.Addr
}

// reservationIndex is the index over the reservations of all FixedIPs. The ledger's lock guards it.
type reservationIndex struct {
	// records contains the reservations. Key: Reservation.Record.
	records map[string]Reservation
	// addrs contains one element for each address of each FixedIP, sorted by address. If several FixedIPs reserve an
	// address, the one that takes precedence comes first: the oldest, or else the first by name.
	addrs *btree.BTreeG[reservedAddress]
}

type reservedAddress struct {
	addr   netip.Addr
	since  time.Time
	record string
}

func newReservationIndex() *reservationIndex {
	return &reservationIndex{
		records: map[string]Reservation{},
		addrs: btree.NewG(32, func(x, y reservedAddress) bool {
			return cmp.Or(x.addr.Compare(y.addr), x.since.Compare(y.since), strings.Compare(x.record, y.record)) < 0
		}),
	}
}

// replace replaces the reservation of a FixedIP and returns the former one. The zero Reservation stands for none.
func (k *reservationIndex) replace(record string, by Reservation) (before Reservation) {
	before = k.records[record]
	for _, a := range before.Addrs {
		k.addrs.Delete(reservedAddress{a, before.Since, record})
	}
	delete(k.records, record)
	if by.Record != "" {
		k.records[record] = by
	}
	for _, a := range by.Addrs {
		k.addrs.ReplaceOrInsert(reservedAddress{a, by.Since, record})
	}
	return before
}

// in iterates over the reserved addresses of a subnet with their reservations, in the order of addrs. An address that
// several FixedIPs reserve occurs several times.
func (k *reservationIndex) in(subnet netip.Prefix) iter.Seq2[netip.Addr, Reservation] {
	return func(yield func(netip.Addr, Reservation) bool) {
		k.addrs.AscendGreaterOrEqual(reservedAddress{addr: subnet.Masked().Addr()}, func(found reservedAddress) bool {
			return subnet.Contains(found.addr) && yield(found.addr, k.records[found.record])
		})
	}
}

// first returns the reservation of an address; if there are several, the one that takes precedence.
func (k *reservationIndex) first(a netip.Addr) (r Reservation, ok bool) {
	for _, r := range k.in(netip.PrefixFrom(a, a.BitLen())) {
		return r, true
	}
	return Reservation{}, false
}

// of returns the address of a family that the FixedIP with the namespace and name of the pod owner reserves for that pod.
// The result is false if there is none.
func (k *reservationIndex) of(owner string, f address.Family) (netip.Addr, bool) {
	if r := k.records[owner]; r.Owner == owner {
		for _, a := range r.Addrs {
			if address.Of(a) == f {
				return a, true
			}
		}
	}
	return netip.Addr{}, false
}

// SetReservation replaces the reservation of a FixedIP. freed are the nodes whose subnets contain an address that the
// FixedIP no longer reserves, sorted: other pods may get that address now.
func (l *Ledger) SetReservation(r Reservation) (freed []string) { return l.replace(r.Record, r) }

// RemoveReservation removes the reservation of a FixedIP that was deleted. freed is as for SetReservation.
func (l *Ledger) RemoveReservation(record string) (freed []string) {
	return l.replace(record, Reservation{})
}

func (l *Ledger) replace(record string, by Reservation) (freed []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.reserved.replace(record, by)
	concerned, left := sets.New[string](), sets.New[string]()
	for _, a := range by.Addrs {
		concerned.Insert(l.nodesOf(a)...)
	}
	for _, a := range without(before.Addrs, by.Addrs) {
		left.Insert(l.nodesOf(a)...)
	}
	for name := range concerned.Union(left) {
		if n, ok := l.node(name); ok {
			n.count()
		}
	}
	return sets.List(left)
}

// Reservations returns all reservations, sorted by FixedIP.
func (l *Ledger) Reservations() []Reservation {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return byRecord(l.reserved.records)
}

// ReservationsIn returns the reservations that have an address in any of the subnets, sorted by FixedIP.
func (l *Ledger) ReservationsIn(subnets ...netip.Prefix) []Reservation {
	l.mu.RLock()
	defer l.mu.RUnlock()
	found := map[string]Reservation{}
	for _, s := range subnets {
		for _, r := range l.reserved.in(s) {
			found[r.Record] = r
		}
	}
	return byRecord(found)
}

// ReservationsWithoutSubnet returns the reservations that have an address in no node's subnet, sorted by FixedIP.
func (l *Ledger) ReservationsWithoutSubnet() []Reservation {
	l.mu.RLock()
	defer l.mu.RUnlock()
	found := map[string]Reservation{}
	for record, r := range l.reserved.records {
		if slices.ContainsFunc(r.Addrs, func(a netip.Addr) bool {
			_, has := l.nodeOf(a)
			return !has
		}) {
			found[record] = r
		}
	}
	return byRecord(found)
}

// Unrecorded returns the pods that have an Owned entry and for which no FixedIP has a reservation, unsorted. It leaves out
// unreserved pods on strict nodes, which get no FixedIP. claims are pods with an entry for a workload or a bare pod, as a
// claim writes it; others are pods without such an entry, usually because their entries were written by hand.
func (l *Ledger) Unrecorded() (claims, others []string) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	recorded := sets.New[string]()
	for _, r := range l.reserved.records {
		recorded.Insert(r.Owner)
	}
	for owner, held := range l.owners {
		if recorded.Has(owner) {
			continue
		}
		has := func(of ...pool.Purpose) bool {
			return slices.ContainsFunc(held, func(h NodeAddresses) bool { return slices.Contains(of, l.entryOf(h).Purpose) })
		}
		switch {
		case has(pool.ForWorkload, pool.ForBarePod):
			claims = append(claims, owner)
		case has(pool.UnknownPurpose):
			others = append(others, owner)
		}
	}
	return claims, others
}

func byRecord(all map[string]Reservation) []Reservation {
	return slices.SortedFunc(maps.Values(all), func(x, y Reservation) int { return strings.Compare(x.Record, y.Record) })
}

// ReservedFor returns the pod for which a FixedIP reserves the address, "namespace/name". If several FixedIPs reserve it,
// the one that takes precedence counts.
func (l *Ledger) ReservedFor(a netip.Addr) (owner string, ok bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	r, ok := l.reserved.first(a)
	return r.Owner, ok
}
