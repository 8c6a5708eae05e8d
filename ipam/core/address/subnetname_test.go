// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package address_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"

	"fixedip.io/fixedip/ipam/core/address"
)

func TestSubnetName(t *testing.T) {
	for cidr, want := range map[string]string{
		"10.240.1.0/24":     "10-240-1-0-24",
		"0.0.0.0/0":         "0-0-0-0-0",
		"10.0.0.7/32":       "10-0-0-7-32",
		"fd00:240::/64":     "fd00-240-0-0-0-0-0-0-64",
		"::/0":              "0-0-0-0-0-0-0-0-0",
		"fd00::ffff:1/128":  "fd00-0-0-0-0-0-ffff-1-128",
		"2001:db8:0:a::/63": "2001-db8-0-a-0-0-0-0-63",
	} {
		if got := address.SubnetName(netip.MustParsePrefix(cidr)); got != want {
			t.Errorf("SubnetName(%s) returns %q, want %q", cidr, got, want)
		}
	}
}

// parseSubnetName is the inverse of SubnetName. There is an inverse only if no two subnets have the same name.
func parseSubnetName(name string) (netip.Prefix, error) {
	parts := strings.Split(name, "-")
	text := ""
	switch len(parts) {
	case 5:
		text = strings.Join(parts[:4], ".") + "/" + parts[4]
	case 9:
		text = strings.Join(parts[:8], ":") + "/" + parts[8]
	}
	p, err := netip.ParsePrefix(text)
	if err != nil || address.SubnetName(p) != name {
		return netip.Prefix{}, fmt.Errorf("%q is not the name of a subnet", name)
	}
	return p, nil
}

// FuzzSubnetName checks that each subnet can be found from its name, so that no two subnets have the same one, and that the API
// server accepts the name.
func FuzzSubnetName(f *testing.F) {
	for _, seed := range []string{"10.240.1.0/24", "fd00:240::/64", "0.0.0.0/0", "::/0", "10.0.0.1/24", "fd00::1/64", "::ffff:a00:0/104", "::ffff:10.0.0.0/104", "", "10.0.0.0"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, cidr string) {
		p, err := netip.ParsePrefix(cidr)
		if err != nil {
			return
		}
		name := address.SubnetName(p)
		if got, err := parseSubnetName(name); err != nil || got != p.Masked() {
			t.Errorf("SubnetName(%s) returns %q, which is the name of %s (error %v)", cidr, name, got, err)
		}
		if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
			t.Errorf("the API server refuses the name %q: %v", name, problems)
		}
	})
}
