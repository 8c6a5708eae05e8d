// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package address

import (
	"net/netip"
	"strconv"
	"strings"
)

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
