// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package address

import (
	"fmt"
	"iter"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"go4.org/netipx"
)

// Family is an IP address family. Its value is the IP version: 4 or 6.
type Family uint8

// The address families. IPv4 addresses mapped into IPv6 belong to neither; Parse refuses them.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// Families contains both families in the order in which messages and lists contain them.
var Families = [...]Family{IPv4, IPv6}

// String returns the name of the family in Kubernetes: IPv4 or IPv6.
func (f Family) String() string {
	switch f {
	case IPv4:
		return "IPv4"
	case IPv6:
		return "IPv6"
	}
	return fmt.Sprintf("Family(%d)", uint8(f))
}

// ParseFamily returns the family with the given name: IPv4 or IPv6. Any other text is an error.
func ParseFamily(s string) (Family, error) {
	for _, f := range Families {
		if s == f.String() {
			return f, nil
		}
	}
	return 0, fmt.Errorf("%q is not an IP family; use IPv4 or IPv6", s)
}

// Bits returns the length of addresses of the family in bits: 32 or 128.
func (f Family) Bits() int {
	if f == IPv4 {
		return 32
	}
	return 128
}

// Of returns the family of an address that Parse accepts.
func Of(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// Parse parses one address in canonical form. Other forms are errors, because agents compare addresses as text (Cilium
// fact 5).
func Parse(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	switch {
	case err != nil:
		return netip.Addr{}, fmt.Errorf("%q is not an IP address", s)
	case a.Zone() != "":
		return netip.Addr{}, fmt.Errorf("%q has a zone; a pod address has none", s)
	case a.Is4In6():
		return netip.Addr{}, fmt.Errorf("%q is an IPv4 address mapped into IPv6; write %s", s, a.Unmap())
	case a.String() != s:
		return netip.Addr{}, fmt.Errorf("%q is not in canonical form; write %s", s, a)
	}
	return a, nil
}

// ParseAll returns the addresses that Parse accepts, in the order of texts. It skips all other texts.
func ParseAll(texts []string) []netip.Addr {
	var addrs []netip.Addr
	for _, s := range texts {
		if a, err := Parse(s); err == nil {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// Join returns addresses as text for messages, such as "10.240.1.10, fd00:240::1:a".
func Join(addrs []netip.Addr) string {
	return strings.Join(Strings(addrs), ", ")
}

// JoinFamilies returns families as text for messages, such as "IPv4, IPv6".
func JoinFamilies(families []Family) string {
	names := make([]string, len(families))
	for i, f := range families {
		names[i] = f.String()
	}
	return strings.Join(names, ", ")
}

// Strings returns the canonical text of each address.
func Strings(addrs []netip.Addr) []string {
	out := make([]string, len(addrs))
	for i, a := range addrs {
		out[i] = a.String()
	}
	return out
}

// Additional returns the addresses of addrs that are not in recorded although recorded has another address of their family.
// recorded are the addresses of a FixedIP as text; values that Parse refuses are ignored. If a pool gives one pod both a
// recorded and an additional address of a family, the agent chooses one of the two at random (Cilium fact 1).
func Additional(addrs []netip.Addr, recorded []string) []netip.Addr {
	var found []netip.Addr
	for _, a := range addrs {
		sameFamily := slices.ContainsFunc(recorded, func(ip string) bool {
			other, err := Parse(ip)
			return err == nil && Of(other) == Of(a)
		})
		if sameFamily && !slices.Contains(recorded, a.String()) {
			found = append(found, a)
		}
	}
	return found
}

// mapped contains the IPv4 addresses mapped into IPv6.
var mapped = netipx.RangeOfPrefix(netip.MustParsePrefix("::ffff:0:0/96"))

// HasMapped reports whether r contains IPv4 addresses mapped into IPv6, which Parse refuses.
func HasMapped(r netipx.IPRange) bool { return r.Overlaps(mapped) }

// ParseSubnet parses a CIDR. It returns an error if host bits are set, or if the CIDR contains addresses that Parse refuses.
func ParseSubnet(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil:
		return netip.Prefix{}, fmt.Errorf("%q is not a CIDR such as 10.240.0.0/16 or fd00:240::/48", s)
	case p.Addr().Is4In6():
		return netip.Prefix{}, fmt.Errorf("%q begins with an IPv4 address mapped into IPv6; write an IPv4 CIDR such as 10.240.0.0/16", s)
	case p != p.Masked():
		return netip.Prefix{}, fmt.Errorf("%q has host bits set; the network is %s", s, p.Masked())
	case HasMapped(netipx.RangeOfPrefix(p)):
		return netip.Prefix{}, fmt.Errorf("%q has IPv4 addresses mapped into IPv6; write a CIDR that does not overlap ::ffff:0:0/96", s)
	}
	return p, nil
}

// Ends returns the first and the last address that a pod may have in a subnet. The network and broadcast addresses of
// IPv4 and the subnet-router anycast address of IPv6 (RFC 4291, 2.6.1) are excluded. In subnets that are too small for
// that (/31, /32, /127, /128), a pod may have any address.
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

// Usable reports whether a is in the subnet and is one of the addresses that a pod may have there.
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

// Up iterates over the usable addresses of the subnet in ascending order. Dynamic entries are added in this order and fixed
// addresses are taken in descending order, so that the two rarely meet. The caller must stop early: an IPv6 subnet has too
// many addresses to visit.
func Up(p netip.Prefix) iter.Seq[netip.Addr] {
	first, last := Ends(p)
	return func(yield func(netip.Addr) bool) {
		for a := first; yield(a) && a != last; a = a.Next() {
		}
	}
}

// SubnetName returns the name of the NodeSubnet of a subnet, such as 10-240-1-0-24: the four bytes or eight hexadecimal
// groups of the network address and the prefix length, separated by dashes. No two subnets have the same name.
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

// Family returns the family of the cluster pool.
func (p ClusterPool) Family() Family { return Of(p.CIDR.Addr()) }

// nodeAddresses is the number of addresses that an agent takes for its node in each family: those of the router and of
// the health endpoint (Cilium fact 6). The address of the ingress, which only some agents take, is not counted.
const nodeAddresses = 2

// Validate returns an error if no subnet of the cluster pool can have the mask size. It also returns an error if such a
// subnet has no address left for a pod after the agent has taken nodeAddresses.
func (p ClusterPool) Validate() error {
	if bits := p.Family().Bits(); p.MaskSize > bits {
		return fmt.Errorf("mask size %d is longer than an %s address (%d bits)", p.MaskSize, p.Family(), bits)
	}
	if p.MaskSize < p.CIDR.Bits() {
		return fmt.Errorf("mask size %d is smaller than that of the CIDR %s: a subnet would be larger than the cluster pool", p.MaskSize, p.CIDR)
	}
	if size := Size(netip.PrefixFrom(p.CIDR.Addr(), p.MaskSize)); size <= nodeAddresses {
		// The smallest subnets with more usable addresses are an IPv4 /29 and an IPv6 /126.
		longest := p.Family().Bits() - 2
		if p.Family() == IPv4 {
			longest--
		}
		help := fmt.Sprintf("use at most %d", longest)
		if p.CIDR.Bits() > longest {
			help = fmt.Sprintf("the CIDR %s has no larger subnet: use a CIDR with a prefix length of at most %d", p.CIDR, longest)
		}
		return fmt.Errorf("mask size %d leaves no address for pods: the agent takes %d addresses for its node, and a subnet has only %d; %s", p.MaskSize, nodeAddresses, size, help)
	}
	return nil
}

// Union returns the set of all addresses of the prefixes, which may overlap and be of both families. Invalid prefixes are
// skipped. A lookup in the set is a binary search.
func Union(prefixes []netip.Prefix) *netipx.IPSet {
	return Add(nil, prefixes)
}

// Add returns a set with the addresses of a set and those of prefixes. The set may be nil.
func Add(set *netipx.IPSet, prefixes []netip.Prefix) *netipx.IPSet {
	var b netipx.IPSetBuilder
	if set != nil {
		b.AddSet(set)
	}
	for _, p := range prefixes {
		if p.IsValid() {
			b.AddPrefix(p.Masked())
		}
	}
	// IPSet returns errors for invalid prefixes only.
	sum, _ := b.IPSet()
	return sum
}

// free returns the addresses of the cluster pool that are not taken.
func (p ClusterPool) free(taken *netipx.IPSet) *netipx.IPSet {
	var b netipx.IPSetBuilder
	b.AddPrefix(p.CIDR)
	b.RemoveSet(taken)
	set, _ := b.IPSet()
	return set
}

// Subnets returns the number of subnets of the mask size in the cluster pool. The result is a float64 because an IPv6 cluster
// pool may have more subnets than an integer can count.
func (p ClusterPool) Subnets() float64 { return math.Ldexp(1, p.MaskSize-p.CIDR.Bits()) }

// FreeSubnets returns the number of free subnets of the mask size. The result is a float64 because an IPv6 cluster pool may
// have more subnets than an integer can count.
func (p ClusterPool) FreeSubnets(taken *netipx.IPSet) float64 {
	count := 0.0
	for _, prefix := range p.free(taken).Prefixes() {
		if prefix.Bits() <= p.MaskSize {
			count += math.Ldexp(1, p.MaskSize-prefix.Bits())
		}
	}
	return count
}

// Carve returns a free subnet of the first cluster pool of the family that has one, and false if there is none. It takes the
// smallest gap that is large enough, so that large gaps remain.
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

// SubnetOf returns the subnet of a cluster pool that contains the address and is not taken. If part of that subnet is taken,
// because mask sizes were different before, it returns the largest free part that contains the address. ok is false if the
// address is in no cluster pool or is taken.
func SubnetOf(pools []ClusterPool, a netip.Addr, taken *netipx.IPSet) (subnet netip.Prefix, ok bool) {
	if taken.Contains(a) {
		return netip.Prefix{}, false
	}
	for _, p := range pools {
		if !p.CIDR.Contains(a) {
			continue
		}
		for bits := p.MaskSize; bits <= a.BitLen(); bits++ {
			// A subnet begins at a multiple of its size, so a.Prefix returns the only candidate of this length.
			if subnet, err := a.Prefix(bits); err == nil && !taken.OverlapsPrefix(subnet) {
				return subnet, true
			}
		}
	}
	return netip.Prefix{}, false
}
