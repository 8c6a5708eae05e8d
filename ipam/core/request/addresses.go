// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package request

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math/bits"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"

	"fixedip.io/fixedip/ipam/core/address"
)

// Addresses are requested addresses: the ranges of each family in the order in which they were listed. Ranges do not
// overlap. A range may be as large as IPv6 allows, so no function iterates over a whole range. The zero value requests
// nothing.
type Addresses struct {
	v4, v6 []netipx.IPRange
}

// Exactly returns a request for the given addresses, which have to be distinct.
func Exactly(addrs ...netip.Addr) Addresses {
	var out Addresses
	for _, a := range addrs {
		out.add(netipx.IPRangeFrom(a, a))
	}
	return out
}

// Ranges returns the ranges of a family in the order in which they were listed.
func (a Addresses) Ranges(f address.Family) []netipx.IPRange {
	if f == address.IPv4 {
		return a.v4
	}
	return a.v6
}

// Families returns the families with requested addresses.
func (a Addresses) Families() []address.Family {
	return slices.DeleteFunc(slices.Clone(address.Families[:]), func(f address.Family) bool { return len(a.Ranges(f)) == 0 })
}

// Single returns the address of a family if exactly one is requested.
func (a Addresses) Single(f address.Family) (netip.Addr, bool) {
	ranges := a.Ranges(f)
	if len(ranges) != 1 || ranges[0].From() != ranges[0].To() {
		return netip.Addr{}, false
	}
	return ranges[0].From(), true
}

// Contains reports whether the address is requested.
func (a Addresses) Contains(addr netip.Addr) bool {
	return slices.ContainsFunc(a.Ranges(address.Of(addr)), func(r netipx.IPRange) bool { return r.Contains(addr) })
}

// All iterates over the addresses of a family in the order in which they were listed. Stop early, because IPv6 ranges
// are huge.
func (a Addresses) All(f address.Family) iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for _, r := range a.Ranges(f) {
			for at := r.From(); ; at = at.Next() {
				if !yield(at) {
					return
				}
				if at == r.To() {
					break
				}
			}
		}
	}
}

// Nth returns the address that All yields after n others.
func (a Addresses) Nth(f address.Family, n uint64) (netip.Addr, bool) {
	for _, r := range a.Ranges(f) {
		fromHigh, fromLow := split(r.From())
		toHigh, toLow := split(r.To())
		spanLow, borrow := bits.Sub64(toLow, fromLow, 0)
		spanHigh, _ := bits.Sub64(toHigh, fromHigh, borrow)
		if spanHigh == 0 && n > spanLow {
			n -= spanLow + 1
			continue
		}
		low, carry := bits.Add64(fromLow, n, 0)
		return join(fromHigh+carry, low, r.From().Is4()), true
	}
	return netip.Addr{}, false
}

// Within returns the parts of the ranges that pods may have in a subnet, highest first.
func (a Addresses) Within(subnet netip.Prefix) []netipx.IPRange {
	first, last := address.Ends(subnet)
	var out []netipx.IPRange
	for _, r := range a.Ranges(address.Of(first)) {
		from, to := r.From(), r.To()
		if from.Less(first) {
			from = first
		}
		if last.Less(to) {
			to = last
		}
		if both := netipx.IPRangeFrom(from, to); both.IsValid() {
			out = append(out, both)
		}
	}
	slices.SortFunc(out, func(x, y netipx.IPRange) int { return y.To().Compare(x.To()) })
	return out
}

// shown is the number of ranges that a message lists before it counts the rest.
const shown = 4

// String returns the addresses as text for messages, such as "10.240.1.10-10.240.1.19, fd00:240::1:a".
func (a Addresses) String() string {
	all := slices.Concat(a.v4, a.v6)
	var parts []string
	for _, r := range all[:min(shown, len(all))] {
		if r.From() == r.To() {
			parts = append(parts, r.From().String())
		} else {
			parts = append(parts, r.String())
		}
	}
	text := strings.Join(parts, ", ")
	if more := len(all) - shown; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func (a *Addresses) add(r netipx.IPRange) {
	if r.From().Is4() {
		a.v4 = append(a.v4, r)
	} else {
		a.v6 = append(a.v6, r)
	}
}

// split returns an address as a number of 128 bits. IPv4 is mapped into IPv6, which keeps differences.
func split(a netip.Addr) (high, low uint64) {
	b := a.As16()
	return binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
}

func join(high, low uint64, v4 bool) netip.Addr {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], high)
	binary.BigEndian.PutUint64(b[8:], low)
	a := netip.AddrFrom16(b)
	if v4 {
		return a.Unmap()
	}
	return a
}
