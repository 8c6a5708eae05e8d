// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package address_test

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"fixedip.io/fixedip/ipam/core/address"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func TestParse(t *testing.T) {
	for text, wantErr := range map[string]string{
		"10.240.1.10":      "",
		"fd00:240::1:a":    "",
		"FD00::1":          `"FD00::1" is not in canonical form; write fd00::1`,
		"fd00:0::1":        `"fd00:0::1" is not in canonical form; write fd00::1`,
		"10.0.0.256":       `"10.0.0.256" is not an IP address`,
		"":                 `"" is not an IP address`,
		"fe80::1%eth0":     `"fe80::1%eth0" has a zone; a pod address has none`,
		"::ffff:10.0.0.1":  `"::ffff:10.0.0.1" is an IPv4 address mapped into IPv6; write 10.0.0.1`,
		"10.240.1.0/24":    `"10.240.1.0/24" is not an IP address`,
		" 10.240.1.10":     `" 10.240.1.10" is not an IP address`,
		"010.240.1.10":     `"010.240.1.10" is not an IP address`,
		"10.240.1.10\x00b": `"10.240.1.10\x00b" is not an IP address`,
	} {
		_, err := address.Parse(text)
		if got := message(err); got != wantErr {
			t.Errorf("Parse(%q) returns error %q, want %q", text, got, wantErr)
		}
	}
}

func TestParseSubnet(t *testing.T) {
	for text, wantErr := range map[string]string{
		"10.240.0.0/16":      "",
		"fd00:240::/48":      "",
		"10.0.0.0/33":        `"10.0.0.0/33" is not a CIDR such as 10.240.0.0/16 or fd00:240::/48`,
		"10.0.0.5/16":        `"10.0.0.5/16" has host bits set; the network is 10.0.0.0/16`,
		"::/0":               `"::/0" has IPv4 addresses mapped into IPv6; write a CIDR that does not overlap ::ffff:0:0/96`,
		"::ffff:10.0.0.0/96": `"::ffff:10.0.0.0/96" begins with an IPv4 address mapped into IPv6; write an IPv4 CIDR such as 10.240.0.0/16`,
		"10.0.0.0":           `"10.0.0.0" is not a CIDR such as 10.240.0.0/16 or fd00:240::/48`,
	} {
		_, err := address.ParseSubnet(text)
		if got := message(err); got != wantErr {
			t.Errorf("ParseSubnet(%q) returns error %q, want %q", text, got, wantErr)
		}
	}
}

func TestSubnetEnds(t *testing.T) {
	for subnet, want := range map[string]struct {
		lowest, highest string
		size            int64
	}{
		"10.240.1.0/24":      {"10.240.1.1", "10.240.1.254", 254},
		"10.240.1.4/30":      {"10.240.1.5", "10.240.1.6", 2},
		"10.240.1.4/31":      {"10.240.1.4", "10.240.1.5", 2},
		"10.240.1.4/32":      {"10.240.1.4", "10.240.1.4", 1},
		"fd00::/120":         {"fd00::1", "fd00::ff", 255},
		"fd00::10/127":       {"fd00::10", "fd00::11", 2},
		"fd00::/64":          {"fd00::1", "fd00::ffff:ffff:ffff:ffff", math.MaxInt64},
		"fd00::/66":          {"fd00::1", "fd00::3fff:ffff:ffff:ffff", 1<<62 - 1},
		"255.255.255.252/30": {"255.255.255.253", "255.255.255.254", 2},
	} {
		p := prefix(subnet)
		var lowest netip.Addr
		for lowest = range address.Up(p) {
			break
		}
		_, highest := address.Ends(p)
		if lowest.String() != want.lowest || highest.String() != want.highest || address.Size(p) != want.size {
			t.Errorf("subnet %s: lowest address %s, highest %s, size %d; want %+v", subnet, lowest, highest, address.Size(p), want)
		}
	}
}

// TestUp checks that Up visits exactly the usable addresses of a subnet, in ascending order, and as many as Size returns.
func TestUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p netip.Prefix
		if rapid.Bool().Draw(t, "v6") {
			p, _ = netip.AddrFrom16([16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "addr"))).Prefix(rapid.IntRange(118, 128).Draw(t, "bits"))
		} else {
			p, _ = netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "addr"))).Prefix(rapid.IntRange(22, 32).Draw(t, "bits"))
		}
		up := slices.Collect(address.Up(p))
		if int64(len(up)) != address.Size(p) || !slices.IsSortedFunc(up, netip.Addr.Compare) {
			t.Fatalf("Up(%s) visits %v, want %d addresses in ascending order", p, up, address.Size(p))
		}
		for _, a := range up {
			if !address.Usable(p, a) {
				t.Fatalf("Up(%s) visits %s, which is not usable", p, a)
			}
		}
		if address.Usable(p, up[0].Prev()) || address.Usable(p, up[len(up)-1].Next()) {
			t.Fatalf("Up(%s) visits %s to %s, but the address before or after that range is usable too", p, up[0], up[len(up)-1])
		}
	})
}

func TestClusterPoolValidate(t *testing.T) {
	for name, c := range map[string]struct {
		pool    address.ClusterPool
		wantErr string
	}{
		"a /24 from a /16":                 {pool: address.ClusterPool{CIDR: prefix("10.240.0.0/16"), MaskSize: 24}},
		"as large as the pool":             {pool: address.ClusterPool{CIDR: prefix("10.240.0.0/16"), MaskSize: 16}},
		"larger than the pool":             {address.ClusterPool{CIDR: prefix("10.240.0.0/16"), MaskSize: 8}, "mask size 8 is smaller than that of the CIDR 10.240.0.0/16: a subnet would be larger than the cluster pool"},
		"longer than an address":           {address.ClusterPool{CIDR: prefix("10.240.0.0/16"), MaskSize: 33}, "mask size 33 is longer than an IPv4 address (32 bits)"},
		"the smallest allowed subnet":      {pool: address.ClusterPool{CIDR: prefix("10.240.0.0/16"), MaskSize: 29}},
		"no address for pods":              {address.ClusterPool{CIDR: prefix("10.240.0.0/16"), MaskSize: 30}, "mask size 30 leaves no address for pods: the agent takes 2 addresses for its node, and a subnet has only 2; use at most 29"},
		"too few addresses for the node":   {address.ClusterPool{CIDR: prefix("10.240.0.0/16"), MaskSize: 32}, "mask size 32 leaves no address for pods: the agent takes 2 addresses for its node, and a subnet has only 1; use at most 29"},
		"the pool itself is too small":     {address.ClusterPool{CIDR: prefix("10.240.0.0/30"), MaskSize: 30}, "mask size 30 leaves no address for pods: the agent takes 2 addresses for its node, and a subnet has only 2; the CIDR 10.240.0.0/30 has no larger subnet: use a CIDR with a prefix length of at most 29"},
		"no address for pods in IPv6":      {address.ClusterPool{CIDR: prefix("fd00::/48"), MaskSize: 127}, "mask size 127 leaves no address for pods: the agent takes 2 addresses for its node, and a subnet has only 2; use at most 126"},
		"the smallest allowed IPv6 subnet": {pool: address.ClusterPool{CIDR: prefix("fd00::/48"), MaskSize: 126}},
		"an IPv6 mask size above 32":       {pool: address.ClusterPool{CIDR: prefix("fd00::/48"), MaskSize: 64}},
		"longer than an IPv6 address":      {address.ClusterPool{CIDR: prefix("fd00::/48"), MaskSize: 129}, "mask size 129 is longer than an IPv6 address (128 bits)"},
	} {
		if got := message(c.pool.Validate()); got != c.wantErr {
			t.Errorf("%s: error %q, want %q", name, got, c.wantErr)
		}
	}
}

// TestCarve checks that a carved subnet is in its cluster pool, has the mask size and overlaps no taken subnet. It also
// checks that Carve finds a subnet as long as FreeSubnets counts one.
func TestCarve(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pool := address.ClusterPool{CIDR: prefix("10.240.0.0/26"), MaskSize: rapid.IntRange(26, 30).Draw(t, "mask")}
		taken := rapid.SliceOf(rapid.Custom(func(t *rapid.T) netip.Prefix {
			p, _ := netip.AddrFrom4([4]byte{10, 240, 0, rapid.Byte().Draw(t, "byte")}).Prefix(rapid.IntRange(26, 32).Draw(t, "bits"))
			return p
		})).Draw(t, "taken")
		free := 0
		for b := 0; b < 64; b += 1 << (32 - pool.MaskSize) {
			candidate := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 240, 0, byte(b)}), pool.MaskSize)
			if !slices.ContainsFunc(taken, candidate.Overlaps) {
				free++
			}
		}
		for {
			if left := pool.FreeSubnets(address.Union(taken)); left != float64(free) {
				t.Fatalf("FreeSubnets of %s with mask size %d returns %v while %v are taken, want %d", pool.CIDR, pool.MaskSize, left, taken, free)
			}
			subnet, ok := address.Carve([]address.ClusterPool{pool}, address.IPv4, address.Union(taken))
			if ok != (free > 0) {
				t.Fatalf("Carve found a subnet: %v, want %v, because %d subnets are free", ok, free > 0, free)
			}
			if !ok {
				return
			}
			if subnet.Bits() != pool.MaskSize || !pool.CIDR.Contains(subnet.Addr()) || slices.ContainsFunc(taken, subnet.Overlaps) {
				t.Fatalf("Carve returns %s, want a /%d in %s that overlaps none of %v", subnet, pool.MaskSize, pool.CIDR, taken)
			}
			taken = append(taken, subnet)
			free--
		}
	})
}

func TestCarveTakesPoolsInOrder(t *testing.T) {
	pools := []address.ClusterPool{
		{CIDR: prefix("10.1.0.0/24"), MaskSize: 24},
		{CIDR: prefix("fd00::/48"), MaskSize: 64},
		{CIDR: prefix("10.2.0.0/24"), MaskSize: 25},
	}
	var taken []netip.Prefix
	for _, want := range []string{"10.1.0.0/24", "10.2.0.0/25", "10.2.0.128/25"} {
		got, ok := address.Carve(pools, address.IPv4, address.Union(taken))
		if !ok || got.String() != want {
			t.Fatalf("Carve returns %v, %v; want %s", got, ok, want)
		}
		taken = append(taken, got)
	}
	if got, ok := address.Carve(pools, address.IPv4, address.Union(taken)); ok {
		t.Fatalf("Carve returns %v, want none: every IPv4 subnet is taken", got)
	}
	if got, ok := address.Carve(pools, address.IPv6, address.Union(taken)); !ok || got.String() != "fd00::/64" {
		t.Fatalf("Carve returns %v, %v; want fd00::/64", got, ok)
	}
}

func TestSubnetOf(t *testing.T) {
	pools := []address.ClusterPool{{CIDR: prefix("10.1.0.0/16"), MaskSize: 24}, {CIDR: prefix("fd00::/48"), MaskSize: 64}}
	for name, c := range map[string]struct {
		addr  string
		taken []netip.Prefix
		want  string
	}{
		"free subnet":                      {"10.1.7.9", []netip.Prefix{prefix("10.1.6.0/24")}, "10.1.7.0/24"},
		"free IPv6 subnet":                 {"fd00::1:0:0:0:5", nil, "fd00:0:0:1::/64"},
		"taken":                            {"10.1.7.9", []netip.Prefix{prefix("10.1.0.0/20")}, "invalid Prefix"},
		"in no cluster pool":               {"10.2.7.9", nil, "invalid Prefix"},
		"part of the subnet is taken":      {"10.1.7.9", []netip.Prefix{prefix("10.1.7.128/25"), prefix("10.1.7.64/26")}, "10.1.7.0/26"},
		"the neighboring address is taken": {"10.1.7.9", []netip.Prefix{prefix("10.1.7.8/32")}, "10.1.7.9/32"},
	} {
		got, ok := address.SubnetOf(pools, netip.MustParseAddr(c.addr), address.Union(c.taken))
		if got.String() != c.want || ok != got.IsValid() {
			t.Errorf("%s: SubnetOf returns %s, %v; want %s", name, got, ok, c.want)
		}
	}
}

// BenchmarkCarve measures Union and Carve with 5,000 and 10,000 taken subnets, each of which is followed by a free one,
// and with 65,535 taken subnets, after which only one is free. The time must not grow faster than the number of
// subnets.
func BenchmarkCarve(b *testing.B) {
	pools := []address.ClusterPool{{CIDR: prefix("10.0.0.0/8"), MaskSize: 24}}
	subnet := func(i int) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)
	}
	taken := map[int][]netip.Prefix{}
	for _, subnets := range []int{5000, 10000} {
		for i := range subnets {
			taken[subnets] = append(taken[subnets], subnet(2*i))
		}
	}
	for i := range 1<<16 - 1 {
		taken[1<<16] = append(taken[1<<16], subnet(i))
	}
	for _, subnets := range slices.Sorted(maps.Keys(taken)) {
		b.Run(fmt.Sprintf("subnets=%d", subnets), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, ok := address.Carve(pools, address.IPv4, address.Union(taken[subnets])); !ok {
					b.Fatalf("Carve found no free subnet while %d are taken, want one", len(taken[subnets]))
				}
			}
		})
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestFreeSubnets(t *testing.T) {
	for name, c := range map[string]struct {
		cidr  string
		mask  int
		taken []string
		want  float64
	}{
		"nothing taken":                          {cidr: "10.0.0.0/16", mask: 24, want: 256},
		"some subnets taken":                     {cidr: "10.0.0.0/16", mask: 24, taken: []string{"10.0.0.0/24", "10.0.7.0/24", "10.1.0.0/24"}, want: 254},
		"a larger subnet taken":                  {cidr: "10.0.0.0/16", mask: 24, taken: []string{"10.0.0.0/17"}, want: 128},
		"smaller subnets taken":                  {cidr: "10.0.0.0/23", mask: 24, taken: []string{"10.0.0.0/30", "10.0.1.128/25"}, want: 0},
		"everything taken":                       {cidr: "10.0.0.0/24", mask: 24, taken: []string{"10.0.0.0/24"}, want: 0},
		"more subnets than an integer can count": {cidr: "fd00::/16", mask: 120, taken: []string{"fd00::/17"}, want: 1 << 51 * (1 << 52)},
	} {
		var taken []netip.Prefix
		for _, s := range c.taken {
			taken = append(taken, netip.MustParsePrefix(s))
		}
		p := address.ClusterPool{CIDR: netip.MustParsePrefix(c.cidr), MaskSize: c.mask}
		if got := p.FreeSubnets(address.Union(taken)); got != c.want {
			t.Errorf("%s: FreeSubnets returns %v, want %v", name, got, c.want)
		}
	}
}

// TestAdd checks that Add returns the union of a set and prefixes, and leaves the set unchanged.
func TestAdd(t *testing.T) {
	set := address.Union([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")})
	sum := address.Add(set, []netip.Prefix{netip.MustParsePrefix("10.0.1.7/24"), {}})
	if want := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/23")}; !slices.Equal(sum.Prefixes(), want) {
		t.Errorf("got %v, want %v", sum.Prefixes(), want)
	}
	if want := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}; !slices.Equal(set.Prefixes(), want) {
		t.Errorf("the set has become %v, want %v", set.Prefixes(), want)
	}
}
