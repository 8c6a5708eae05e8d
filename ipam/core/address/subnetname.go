// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package address

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// SubnetName returns the name of the API object of a subnet: its four bytes or eight groups and its prefix length,
// separated by dashes. No two subnets share a name, and none has two.
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

// ParseSubnetName returns the subnet of a name that SubnetName returned, and an error for every other name.
func ParseSubnetName(name string) (netip.Prefix, error) {
	parts := strings.Split(name, "-")
	text := ""
	switch len(parts) {
	case 5:
		text = strings.Join(parts[:4], ".") + "/" + parts[4]
	case 9:
		text = strings.Join(parts[:8], ":") + "/" + parts[8]
	}
	p, err := netip.ParsePrefix(text)
	if err != nil || SubnetName(p) != name {
		return netip.Prefix{}, fmt.Errorf("%q is not the name of a subnet, such as 10-240-1-0-24 or fd00-240-0-0-0-0-0-0-64", name)
	}
	return p, nil
}
