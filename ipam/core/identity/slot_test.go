// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package identity_test

import (
	"net/netip"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"

	"fixedip.io/fixedip/ipam/core/identity"
)

// TestSlotName checks that the names of slots are readable, valid as object names, and different for different workloads and
// addresses.
func TestSlotName(t *testing.T) {
	long := strings.Repeat("a", 250)
	seen := map[string]string{}
	for _, c := range []struct{ workload, addr, want string }{
		{"web", "10.240.1.254", "web-10-240-1-254"},
		{"web", "fd00:240::1:a", "web-fd00-240--1-a"},
		{"web", "fd00::", "web-fd00--0"},
		{"web", "::1", "web---1"},
		{"web", "a::b:0:c:d", "web-a--b-0-c-d"},
		{"web", "a:0:b::c:d", "web-a-0-b--c-d"},
		{long, "10.240.1.254", ""},
		{long[:249] + "b", "10.240.1.254", ""},
		{strings.Repeat("a.", 125) + "a", "fd00:240:1111:2222:3333:4444:5555:6666", ""},
	} {
		got := identity.SlotName(c.workload, netip.MustParseAddr(c.addr))
		if c.want != "" && got != c.want {
			t.Errorf("SlotName(%s, %s) returns %s, want %s", c.workload, c.addr, got, c.want)
		}
		if problems := validation.IsDNS1123Subdomain(got); len(problems) > 0 {
			t.Errorf("SlotName(%s, %s) returns the invalid name %s: %v", c.workload, c.addr, got, problems)
		}
		if other, ok := seen[got]; ok {
			t.Errorf("SlotName returns %s for both %s and %s, want different names", got, other, c.workload+" "+c.addr)
		}
		seen[got] = c.workload + " " + c.addr
	}
}
