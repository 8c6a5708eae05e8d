// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package address_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"go4.org/netipx"

	"fixedip.io/fixedip/ipam/core/address"
)

// FuzzParse checks that a parsed address prints as the same text, and that errors name the input.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"10.240.1.10", "fd00:240::1:a", "FD00::1", "010.0.0.1", "::ffff:10.0.0.1", "fe80::1%eth0", "0:0:0:0:0:0:0:1", "", "10.0.0.1\n", "10.0.0.1/32"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := address.Parse(text)
		if err != nil {
			if !strings.Contains(err.Error(), fmt.Sprintf("%q", text)) {
				t.Errorf("error %q does not quote the input %q", err, text)
			}
			return
		}
		if a.String() != text || !a.IsValid() || a.Is4In6() || a.Zone() != "" || a.BitLen() != address.Of(a).Bits() {
			t.Errorf("Parse(%q) returns %s, want an address with the same text, or an error", text, a)
		}
	})
}

// FuzzParseSubnet checks that ParseSubnet returns the CIDR of the text, that Ends, Usable and Up agree on which addresses
// of the subnet are usable, and that Size returns their number.
func FuzzParseSubnet(f *testing.F) {
	for _, seed := range []string{"10.240.0.0/16", "fd00:240::/48", "10.240.0.1/16", "10.0.0.0/31", "10.0.0.7/32", "0.0.0.0/0", "::/0", "::/80", "fd00::/127", "::ffff:10.0.0.0/120", "10.0.0.0/033", "10.0.0.0", "FD00::/64"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := address.ParseSubnet(text)
		if err != nil {
			if !strings.Contains(err.Error(), fmt.Sprintf("%q", text)) {
				t.Errorf("error %q does not quote the input %q", err, text)
			}
			return
		}
		written := netip.MustParsePrefix(text)
		if p != written || p != p.Masked() || address.HasMapped(netipx.RangeOfPrefix(p)) {
			t.Fatalf("ParseSubnet(%q) returns %s, want the same prefix without host bits and without mapped addresses", text, p)
		}
		first, last := address.Ends(p)
		if !p.Contains(first) || !p.Contains(last) || last.Less(first) || !address.Usable(p, first) || !address.Usable(p, last) {
			t.Fatalf("Ends(%s) returns %s and %s, want usable addresses in ascending order", p, first, last)
		}
		for _, beyond := range []netip.Addr{first.Prev(), last.Next(), p.Addr().Prev(), netipx.PrefixLastIP(p).Next()} {
			if beyond.IsValid() && address.Usable(p, beyond) {
				t.Fatalf("Usable(%s, %s) returns true, want false outside %s-%s", p, beyond, first, last)
			}
		}
		const visited = 512
		up := int64(0)
		for a := range address.Up(p) {
			if up++; up > visited {
				break
			}
			if !address.Usable(p, a) {
				t.Fatalf("Up(%s) visits %s, which is not usable", p, a)
			}
		}
		if size := address.Size(p); up != min(size, visited+1) {
			t.Fatalf("Size(%s) returns %d, but Up visits %d addresses (at most %d were counted)", p, size, up, visited+1)
		}
	})
}

// FuzzClusterPool checks that Carve finds a subnet if and only if FreeSubnets counts one, and that the subnets that Carve and
// SubnetOf return are in the CIDR of the cluster pool and do not overlap the taken subnet. Errors of Validate have to name the
// mask size.
func FuzzClusterPool(f *testing.F) {
	f.Add("10.240.0.0/16", 24, "10.240.0.0/24")
	f.Add("10.240.0.0/16", 33, "10.240.0.0/17")
	f.Add("10.240.0.0/16", -1, "0.0.0.0/0")
	f.Add("fd00::/48", 64, "fd00::/49")
	f.Add("8000::/1", 128, "c000::/2")
	f.Add("0.0.0.0/0", 0, "10.0.0.0/8")
	f.Fuzz(func(t *testing.T, cidr string, mask int, taken string) {
		p, err := address.ParseSubnet(cidr)
		other, otherErr := address.ParseSubnet(taken)
		if err != nil || otherErr != nil {
			return
		}
		cp := address.ClusterPool{CIDR: p, MaskSize: mask}
		if err := cp.Validate(); err != nil {
			if !strings.Contains(err.Error(), fmt.Sprint(mask)) {
				t.Errorf("error %q does not name the mask size %d", err, mask)
			}
			return
		}
		set := address.Union([]netip.Prefix{other})
		left := cp.FreeSubnets(set)
		subnet, ok := address.Carve([]address.ClusterPool{cp}, cp.Family(), set)
		if ok != (left > 0) {
			t.Fatalf("Carve from %s returns %s, %v, but FreeSubnets returns %v", p, subnet, ok, left)
		}
		if ok && (subnet.Bits() != mask || !p.Contains(subnet.Addr()) || subnet.Overlaps(other) || subnet != subnet.Masked()) {
			t.Fatalf("Carve from %s returns %s, want a /%d in the pool that does not overlap %s", p, subnet, mask, other)
		}
		first, _ := address.Ends(p)
		if s, ok := address.SubnetOf([]address.ClusterPool{cp}, first, set); ok && (!s.Contains(first) || s.Overlaps(other) || !p.Contains(s.Addr())) {
			t.Fatalf("SubnetOf(%s) returns %s, want a subnet of %s that contains the address and does not overlap %s", first, s, p, other)
		}
	})
}
