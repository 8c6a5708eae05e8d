package address

import (
	"fmt"
	"math"
	"net/netip"

	"go4.org/netipx"
)

// ClusterPool is a CIDR that is cut into subnets of one size, one subnet a node.
type ClusterPool struct {
	CIDR netip.Prefix
	// MaskSize is the prefix length of the subnets that are cut from CIDR.
	MaskSize int
}

// Family is the family of the pool's addresses.
func (p ClusterPool) Family() Family { return Of(p.CIDR.Addr()) }

// Validate refuses a mask size that no subnet of the pool can have.
func (p ClusterPool) Validate() error {
	if bits := p.Family().Bits(); p.MaskSize > bits {
		return fmt.Errorf("mask size %d is longer than an %s address (%d bits)", p.MaskSize, p.Family(), bits)
	}
	if p.MaskSize < p.CIDR.Bits() {
		return fmt.Errorf("mask size %d is smaller than that of the CIDR %s: a subnet would be larger than the pool", p.MaskSize, p.CIDR)
	}
	return nil
}

// Overlap finds two CIDRs that share addresses.
func Overlap(cidrs []netip.Prefix) (a, b netip.Prefix, found bool) {
	for i, a := range cidrs {
		for _, b := range cidrs[i+1:] {
			if a.Overlaps(b) {
				return a, b, true
			}
		}
	}
	return netip.Prefix{}, netip.Prefix{}, false
}

// Union is the set of all addresses of some prefixes. The prefixes may be of either family and
// overlap. It is made once for many questions: each costs a binary search then, where a walk over
// the prefixes for every address would be quadratic in the size of a cluster.
func Union(prefixes []netip.Prefix) *netipx.IPSet {
	var b netipx.IPSetBuilder
	for _, p := range prefixes {
		if p.IsValid() {
			b.AddPrefix(p.Masked())
		}
	}
	// The builder collects errors for invalid prefixes only.
	set, _ := b.IPSet()
	return set
}

// free is what is left of a pool.
func (p ClusterPool) free(taken *netipx.IPSet) *netipx.IPSet {
	var b netipx.IPSetBuilder
	b.AddPrefix(p.CIDR)
	b.RemoveSet(taken)
	set, _ := b.IPSet()
	return set
}

// FreeSubnets is how many subnets can still be cut from the pool, leaving out all that is taken. It is
// a float since a pool of IPv6 may have more than an integer can count.
func (p ClusterPool) FreeSubnets(taken *netipx.IPSet) float64 {
	count := 0.0
	for _, prefix := range p.free(taken).Prefixes() {
		if prefix.Bits() <= p.MaskSize {
			count += math.Ldexp(1, p.MaskSize-prefix.Bits())
		}
	}
	return count
}

// Carve cuts a subnet from the first pool of the family that still has one, leaving out all that
// is taken. It takes the smallest gap that is large enough, so that large ones stay whole.
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

// SubnetOf is the subnet that an address has, or had, which is not in any that is taken: the one
// that a pool would cut, or as much of it as is not taken where the pools were cut differently
// before. ok is false where the address is in no pool, or is taken.
func SubnetOf(pools []ClusterPool, a netip.Addr, taken *netipx.IPSet) (subnet netip.Prefix, ok bool) {
	if taken.Contains(a) {
		return netip.Prefix{}, false
	}
	for _, p := range pools {
		if !p.CIDR.Contains(a) {
			continue
		}
		for bits := p.MaskSize; bits <= a.BitLen(); bits++ {
			// A pool cuts subnets at multiples of their size.
			if subnet, err := a.Prefix(bits); err == nil && !taken.OverlapsPrefix(subnet) {
				return subnet, true
			}
		}
	}
	return netip.Prefix{}, false
}
