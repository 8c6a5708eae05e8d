// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package address

import (
	"fmt"
	"math"
	"net/netip"

	"go4.org/netipx"
)

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
