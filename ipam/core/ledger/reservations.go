// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/btree"

	"fixedip.io/fixedip/ipam/core/address"
)

// Reservation is what one FixedIP keeps for its pod, whether or not an entry of a pool says so too: it
// may have been made beforehand or restored from a backup, or its entry was lost.
type Reservation struct {
	// Record names the FixedIP: "namespace/name".
	Record string
	// Since is when the FixedIP was made. Of two that keep one address the older one counts.
	Since time.Time
	// Owner is the pod, as pool entries name it.
	Owner string
	Addrs []netip.Addr
}

// reservationIndex is the index over what all FixedIPs keep. It is guarded by the ledger's lock.
type reservationIndex struct {
	// records are what each FixedIP keeps. Key: Reservation.Record.
	records map[string]Reservation
	// addrs orders what is kept by address, and where several FixedIPs keep one address by which
	// counts. Invariant: an item is in it exactly while records has a Reservation with its address.
	addrs *btree.BTreeG[reservedAddress]
}

type reservedAddress struct {
	addr   netip.Addr
	since  time.Time
	record string
}

func newKept() *reservationIndex {
	return &reservationIndex{
		records: map[string]Reservation{},
		addrs: btree.NewG(32, func(x, y reservedAddress) bool {
			if c := x.addr.Compare(y.addr); c != 0 {
				return c < 0
			}
			if c := x.since.Compare(y.since); c != 0 {
				return c < 0
			}
			return x.record < y.record
		}),
	}
}

func (k *reservationIndex) add(r Reservation) {
	k.records[r.Record] = r
	for _, a := range r.Addrs {
		k.addrs.ReplaceOrInsert(reservedAddress{a, r.Since, r.Record})
	}
}

// remove takes a record out and returns what it kept.
func (k *reservationIndex) remove(record string) Reservation {
	r, ok := k.records[record]
	if !ok {
		return Reservation{}
	}
	delete(k.records, record)
	for _, a := range r.Addrs {
		k.addrs.Delete(reservedAddress{a, r.Since, r.Record})
	}
	return r
}

// keeper is the FixedIP that keeps an address: of several the one that counts.
func (k *reservationIndex) keeper(a netip.Addr) (r Reservation, ok bool) {
	k.addrs.AscendGreaterOrEqual(reservedAddress{addr: a}, func(found reservedAddress) bool {
		if found.addr == a {
			r, ok = k.records[found.record], true
		}
		return false
	})
	return r, ok
}

// of is the address of a family that the FixedIP of a pod keeps for it: the one that has its name.
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

// within walks the kept addresses of a subnet, each once.
func (k *reservationIndex) within(subnet netip.Prefix) iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		var last netip.Addr
		k.addrs.AscendGreaterOrEqual(reservedAddress{addr: subnet.Addr()}, func(found reservedAddress) bool {
			if !subnet.Contains(found.addr) {
				return false
			}
			again := found.addr == last
			last = found.addr
			return again || yield(found.addr)
		})
	}
}

// SetRecord takes in what a FixedIP keeps, in place of what was known of it. freed are the homes of
// addresses that it keeps no more: others may have room there now.
func (l *Ledger) SetRecord(r Reservation) (freed []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.replace(r.Record, r)
}

// RemoveRecord forgets a FixedIP that is gone. freed is what it is for SetRecord.
func (l *Ledger) RemoveRecord(record string) (freed []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.replace(record, Reservation{})
}

func (l *Ledger) replace(record string, by Reservation) (freed []string) {
	before := l.kept.remove(record)
	if by.Record != "" {
		l.kept.add(by)
	}
	counted := map[string]bool{}
	for _, a := range slices.Concat(before.Addrs, by.Addrs) {
		for _, name := range l.homes(a) {
			if n, ok := l.node(name); ok && !counted[name] {
				counted[name] = true
				n.count()
			}
			if !slices.Contains(by.Addrs, a) && !slices.Contains(freed, name) {
				freed = append(freed, name)
			}
		}
	}
	slices.Sort(freed)
	return freed
}

// Reservations are what all FixedIPs keep, by their names.
func (l *Ledger) Reservations() []Reservation {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return byRecord(maps.Values(l.kept.records))
}

// ReservationsIn are those that keep an address in any of the subnets.
func (l *Ledger) ReservationsIn(subnets ...netip.Prefix) []Reservation {
	l.mu.RLock()
	defer l.mu.RUnlock()
	found := map[string]Reservation{}
	for _, s := range subnets {
		l.kept.addrs.AscendGreaterOrEqual(reservedAddress{addr: s.Masked().Addr()}, func(k reservedAddress) bool {
			inside := s.Contains(k.addr)
			if inside {
				found[k.record] = l.kept.records[k.record]
			}
			return inside
		})
	}
	return byRecord(maps.Values(found))
}

// ReservationsWithoutSubnet are those that keep an address which is in no node's subnet.
func (l *Ledger) ReservationsWithoutSubnet() []Reservation {
	l.mu.RLock()
	defer l.mu.RUnlock()
	found := map[string]Reservation{}
	l.kept.addrs.Ascend(func(k reservedAddress) bool {
		if len(l.around(k.addr)) == 0 {
			found[k.record] = l.kept.records[k.record]
		}
		return true
	})
	return byRecord(maps.Values(found))
}

// Unrecorded counts the pods that hold an address and that no FixedIP names.
func (l *Ledger) Unrecorded() int {
	l.mu.RLock()
	defer l.mu.RUnlock()
	recorded := make(map[string]bool, len(l.kept.records))
	for _, k := range l.kept.records {
		recorded[k.Owner] = true
	}
	count := 0
	for owner := range l.owners {
		if !recorded[owner] {
			count++
		}
	}
	return count
}

func byRecord(all iter.Seq[Reservation]) []Reservation {
	return slices.SortedFunc(all, func(x, y Reservation) int { return strings.Compare(x.Record, y.Record) })
}

// Kept tells whether a FixedIP keeps the address.
func (l *Ledger) Kept(a netip.Addr) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	_, ok := l.kept.keeper(a)
	return ok
}

// KeptFor is the pod that a FixedIP keeps the address for, as pool entries name it.
func (l *Ledger) KeptFor(a netip.Addr) (owner string, ok bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	k, ok := l.kept.keeper(a)
	return k.Owner, ok
}
