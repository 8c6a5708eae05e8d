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

// FreeSubnets is how many subnets can still be cut from the pool, leaving out all that is taken. It is
// a float since a pool of IPv6 may have more than an integer can count.
func (p ClusterPool) FreeSubnets(taken []netip.Prefix) float64 {
	var b netipx.IPSetBuilder
	b.AddPrefix(p.CIDR)
	for _, t := range taken {
		b.RemovePrefix(t)
	}
	free, err := b.IPSet()
	if err != nil {
		// As in Carve.
		return 0
	}
	count := 0.0
	for _, prefix := range free.Prefixes() {
		if prefix.Bits() <= p.MaskSize {
			count += math.Ldexp(1, p.MaskSize-prefix.Bits())
		}
	}
	return count
}

// Carve cuts a subnet from the first pool of the family that still has one, leaving out all that
// is taken. taken may hold prefixes of any size, of either family, inside the pools or not.
func Carve(pools []ClusterPool, family Family, taken []netip.Prefix) (netip.Prefix, bool) {
	for _, p := range pools {
		if p.Family() != family {
			continue
		}
		var b netipx.IPSetBuilder
		b.AddPrefix(p.CIDR)
		for _, t := range taken {
			b.RemovePrefix(t)
		}
		free, err := b.IPSet()
		if err != nil {
			// The builder collects errors for invalid prefixes only, and none can be built here.
			continue
		}
		if subnet, _, ok := free.RemoveFreePrefix(uint8(p.MaskSize)); ok {
			return subnet, true
		}
	}
	return netip.Prefix{}, false
}
