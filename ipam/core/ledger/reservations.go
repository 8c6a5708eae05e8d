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
)

// Reservation is what one FixedIP reserves for its pod. A pool need not have an entry for it: the FixedIP may have been
// created beforehand or restored from a backup, or its entry was lost.
type Reservation struct {
	// Record is the FixedIP: "namespace/name".
	Record string
	// Since is when the FixedIP was created. Of two that reserve one address the older one counts.
	Since time.Time
	// Owner is the pod, as pool entries name it.
	Owner string
	Addrs []netip.Addr
}

// reservationIndex is the index over the reservations of all FixedIPs. The ledger's lock guards it.
type reservationIndex struct {
	// records are the reservations. Key: Reservation.Record.
	records map[string]Reservation
	// addrs orders the reserved addresses, and of each address the FixedIPs that reserve it by precedence.
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

// replace replaces the reservation of a FixedIP and returns the former one. The zero Reservation is none.
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

// in iterates over the reserved addresses of a subnet with their FixedIPs, in order. An address that several reserve comes
// several times.
func (k *reservationIndex) in(subnet netip.Prefix) iter.Seq2[netip.Addr, Reservation] {
	return func(yield func(netip.Addr, Reservation) bool) {
		k.addrs.AscendGreaterOrEqual(reservedAddress{addr: subnet.Masked().Addr()}, func(found reservedAddress) bool {
			return subnet.Contains(found.addr) && yield(found.addr, k.records[found.record])
		})
	}
}

// first returns the reservation of an address: of several the one that counts.
func (k *reservationIndex) first(a netip.Addr) (r Reservation, ok bool) {
	for _, r := range k.in(netip.PrefixFrom(a, a.BitLen())) {
		return r, true
	}
	return Reservation{}, false
}

// of returns the address of a family that the FixedIP with the name of a pod reserves for it.
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

// SetRecord replaces what is known of a FixedIP. freed are the homes of addresses that it no longer reserves: they may
// have room for other pods now.
func (l *Ledger) SetRecord(r Reservation) (freed []string) { return l.replace(r.Record, r) }

// RemoveRecord forgets a FixedIP that is gone. freed is as for SetRecord.
func (l *Ledger) RemoveRecord(record string) (freed []string) {
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

// ReservationsIn returns those that have an address in any of the subnets.
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

// ReservationsWithoutSubnet returns those that have an address in no node's subnet.
func (l *Ledger) ReservationsWithoutSubnet() []Reservation {
	l.mu.RLock()
	defer l.mu.RUnlock()
	found := map[string]Reservation{}
	for record, r := range l.reserved.records {
		if slices.ContainsFunc(r.Addrs, func(a netip.Addr) bool { return len(l.subnetsOf(a)) == 0 }) {
			found[record] = r
		}
	}
	return byRecord(found)
}

// Unrecorded returns the number of pods with an Owned entry that no FixedIP names.
func (l *Ledger) Unrecorded() int {
	l.mu.RLock()
	defer l.mu.RUnlock()
	unrecorded := sets.KeySet(l.owners)
	for _, r := range l.reserved.records {
		unrecorded.Delete(r.Owner)
	}
	return len(unrecorded)
}

func byRecord(all map[string]Reservation) []Reservation {
	return slices.SortedFunc(maps.Values(all), func(x, y Reservation) int { return strings.Compare(x.Record, y.Record) })
}

// ReservedFor returns the pod that a FixedIP reserves the address for, as pool entries name it.
func (l *Ledger) ReservedFor(a netip.Addr) (owner string, ok bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	r, ok := l.reserved.first(a)
	return r.Owner, ok
}
