// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package address_test

import (
	"net/netip"
	"slices"
	"testing"

	"fixedip.io/fixedip/ipam/core/address"
)

// TestAdditional checks Additional, in particular that it compares each family separately.
func TestAdditional(t *testing.T) {
	for name, c := range map[string]struct {
		held, recorded, want []string
	}{
		"the recorded address":                              {held: []string{"10.0.1.9"}, recorded: []string{"10.0.1.9"}},
		"another address in place of the recorded one":      {held: []string{"10.0.1.7"}, recorded: []string{"10.0.1.9"}, want: []string{"10.0.1.7"}},
		"another address in addition to the recorded one":   {held: []string{"10.0.1.7", "10.0.1.9"}, recorded: []string{"10.0.1.9"}, want: []string{"10.0.1.7"}},
		"an address of a family without a recorded address": {held: []string{"10.0.1.9", "fd00:1::9"}, recorded: []string{"10.0.1.9"}},
		"another address in one of two families":            {held: []string{"10.0.1.9", "fd00:1::7"}, recorded: []string{"10.0.1.9", "fd00:1::9"}, want: []string{"fd00:1::7"}},
		"the recorded text is not an address":               {held: []string{"10.0.1.9"}, recorded: []string{"10.0.1.9/32"}},
		"no recorded address":                               {held: []string{"10.0.1.9"}},
		"no address":                                        {recorded: []string{"10.0.1.9"}},
	} {
		t.Run(name, func(t *testing.T) {
			var held []netip.Addr
			for _, ip := range c.held {
				held = append(held, netip.MustParseAddr(ip))
			}
			if got := address.Strings(address.Additional(held, c.recorded)); !slices.Equal(got, c.want) {
				t.Errorf("Additional returns %v, want %v", got, c.want)
			}
		})
	}
}
