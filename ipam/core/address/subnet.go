// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package address

import (
	"fmt"
	"iter"
	"math"
	"net/netip"

	"go4.org/netipx"
)

// ParseSubnet parses a CIDR whose host bits are zero.
func ParseSubnet(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil:
		return netip.Prefix{}, fmt.Errorf("%q is not a CIDR such as 10.240.0.0/16 or fd00:240::/48", s)
	case p.Addr().Is4In6():
		return netip.Prefix{}, fmt.Errorf("%q is an IPv4 CIDR mapped into IPv6", s)
	case p != p.Masked():
		return netip.Prefix{}, fmt.Errorf("%q has host bits set; the network is %s", s, p.Masked())
	}
	return p, nil
}

// Ends returns the first and the last address of a subnet that a pod may have. The network and broadcast addresses of
// IPv4 and the subnet-router anycast address of IPv6 (RFC 4291, 2.6.1) are excluded, except in subnets that are too
// small (/31, /32, /127, /128).
func Ends(p netip.Prefix) (first, last netip.Addr) {
	first, last = p.Masked().Addr(), netipx.PrefixLastIP(p)
	if Of(first).Bits()-p.Bits() < 2 {
		return first, last
	}
	first = first.Next()
	if first.Is4() {
		last = last.Prev()
	}
	return first, last
}

// Usable reports whether a pod may have the address of the subnet.
func Usable(p netip.Prefix, a netip.Addr) bool {
	first, last := Ends(p)
	return a.BitLen() == first.BitLen() && !a.Less(first) && !last.Less(a)
}

// Size returns the number of addresses of the subnet that pods may have, at most math.MaxInt64.
func Size(p netip.Prefix) int64 {
	host := Of(p.Addr()).Bits() - p.Bits()
	if host >= 63 {
		return math.MaxInt64
	}
	n := int64(1) << host
	switch {
	case host < 2:
		return n
	case p.Addr().Is4():
		return n - 2
	default:
		return n - 1
	}
}

// Down iterates over the usable addresses from the top of the subnet: the order in which fixed addresses are taken. Stop
// early, because IPv6 subnets are huge.
func Down(p netip.Prefix) iter.Seq[netip.Addr] {
	first, last := Ends(p)
	return func(yield func(netip.Addr) bool) {
		for a := last; yield(a) && a != first; a = a.Prev() {
		}
	}
}

// Up iterates over the usable addresses from the bottom of the subnet: the order in which dynamic entries are added, so
// that they rarely meet fixed ones.
func Up(p netip.Prefix) iter.Seq[netip.Addr] {
	first, last := Ends(p)
	return func(yield func(netip.Addr) bool) {
		for a := first; yield(a) && a != last; a = a.Next() {
		}
	}
}
