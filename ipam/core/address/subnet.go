// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package address

import (
	"fmt"
	"iter"
	"math"
	"net/netip"
	"strconv"
	"strings"

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

// SubnetName returns the name of the API object of a subnet: its four bytes or eight groups and its prefix length,
// separated by dashes. No two subnets share a name.
func SubnetName(p netip.Prefix) string {
	p = p.Masked()
	var parts []string
	if p.Addr().Is4() {
		for _, b := range p.Addr().As4() {
			parts = append(parts, strconv.Itoa(int(b)))
		}
	} else {
		raw := p.Addr().As16()
		for i := 0; i < len(raw); i += 2 {
			parts = append(parts, strconv.FormatUint(uint64(raw[i])<<8|uint64(raw[i+1]), 16))
		}
	}
	return strings.Join(append(parts, strconv.Itoa(p.Bits())), "-")
}

// ClusterPool is a CIDR from which nodes get subnets of one size.
type ClusterPool struct {
	CIDR netip.Prefix
	// MaskSize is the prefix length of the subnets.
	MaskSize int
}

// Family returns the family of the pool.
func (p ClusterPool) Family() Family { return Of(p.CIDR.Addr()) }

// Validate returns an error if no subnet of the pool can have the mask size.
func (p ClusterPool) Validate() error {
	if bits := p.Family().Bits(); p.MaskSize > bits {
		return fmt.Errorf("mask size %d is longer than an %s address (%d bits)", p.MaskSize, p.Family(), bits)
	}
	if p.MaskSize < p.CIDR.Bits() {
		return fmt.Errorf("mask size %d is smaller than that of the CIDR %s: a subnet would be larger than the pool", p.MaskSize, p.CIDR)
	}
	return nil
}

// Union returns the set of all addresses of the prefixes, which may overlap and be of both families. A lookup in the set
// is a binary search.
func Union(prefixes []netip.Prefix) *netipx.IPSet {
	var b netipx.IPSetBuilder
	for _, p := range prefixes {
		if p.IsValid() {
			b.AddPrefix(p.Masked())
		}
	}
	// The builder returns errors for invalid prefixes only.
	set, _ := b.IPSet()
	return set
}

// free returns the part of the pool that is not taken.
func (p ClusterPool) free(taken *netipx.IPSet) *netipx.IPSet {
	var b netipx.IPSetBuilder
	b.AddPrefix(p.CIDR)
	b.RemoveSet(taken)
	set, _ := b.IPSet()
	return set
}

// FreeSubnets returns how many subnets of the pool are free. It is a float because an IPv6 pool may have more subnets
// than an integer can count.
func (p ClusterPool) FreeSubnets(taken *netipx.IPSet) float64 {
	count := 0.0
	for _, prefix := range p.free(taken).Prefixes() {
		if prefix.Bits() <= p.MaskSize {
			count += math.Ldexp(1, p.MaskSize-prefix.Bits())
		}
	}
	return count
}

// Carve returns a free subnet of the first pool of the family that has one. It takes the smallest gap that is large
// enough, so that large gaps remain.
func Carve(pools []ClusterPool, family Family, taken *netipx.IPSet) (netip.Prefix, bool) {
	for _, p := range pools {
		if p.Family() != family {
			continue
		}
		if subnet, _, ok := p.free(taken).RemoveFreePrefix(uint8(p.MaskSize)); ok {
			return subnet, true
		}
	}
	return netip.Prefix{}, false
}

// SubnetOf returns the subnet of a pool that contains the address and is not taken. If part of that subnet is taken,
// because mask sizes were different before, it returns the largest free part. ok is false if the address is in no pool
// or is taken.
func SubnetOf(pools []ClusterPool, a netip.Addr, taken *netipx.IPSet) (subnet netip.Prefix, ok bool) {
	if taken.Contains(a) {
		return netip.Prefix{}, false
	}
	for _, p := range pools {
		if !p.CIDR.Contains(a) {
			continue
		}
		for bits := p.MaskSize; bits <= a.BitLen(); bits++ {
			// Subnets are aligned to their size.
			if subnet, err := a.Prefix(bits); err == nil && !taken.OverlapsPrefix(subnet) {
				return subnet, true
			}
		}
	}
	return netip.Prefix{}, false
}
