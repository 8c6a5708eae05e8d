package address

import (
	"fmt"
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
