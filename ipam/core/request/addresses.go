// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package request

import (
	"fmt"
	"math/big"
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
	ranges map[address.Family][]netipx.IPRange
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
func (a Addresses) Ranges(f address.Family) []netipx.IPRange { return a.ranges[f] }

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

// Nth returns the address that follows n others in the order in which they were listed.
func (a Addresses) Nth(f address.Family, n uint64) (netip.Addr, bool) {
	rest := new(big.Int).SetUint64(n)
	for _, r := range a.Ranges(f) {
		from, to := new(big.Int).SetBytes(r.From().AsSlice()), new(big.Int).SetBytes(r.To().AsSlice())
		at := new(big.Int).Add(from, rest)
		if at.Cmp(to) <= 0 {
			return netip.AddrFromSlice(at.FillBytes(make([]byte, f.Bits()/8)))
		}
		// The next range begins after the last address of this one.
		rest = at.Sub(at, to.Add(to, big.NewInt(1)))
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
	all := slices.Concat(a.ranges[address.IPv4], a.ranges[address.IPv6])
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
	if a.ranges == nil {
		a.ranges = map[address.Family][]netipx.IPRange{}
	}
	f := address.Of(r.From())
	a.ranges[f] = append(a.ranges[f], r)
}
