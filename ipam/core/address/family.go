// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package address

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Family is an address family. Its value is the version of the protocol.
type Family uint8

// The two families. IPv4 addresses mapped into IPv6 belong to neither: Parse refuses them.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// Families lists both families in the order in which they are shown and written.
var Families = [...]Family{IPv4, IPv6}

// String returns the name of the family in Kubernetes: IPv4 or IPv6.
func (f Family) String() string {
	switch f {
	case IPv4:
		return "IPv4"
	case IPv6:
		return "IPv6"
	}
	return fmt.Sprintf("Family(%d)", uint8(f))
}

// ParseFamily parses IPv4 or IPv6.
func ParseFamily(s string) (Family, error) {
	for _, f := range Families {
		if s == f.String() {
			return f, nil
		}
	}
	return 0, fmt.Errorf("%q is not an IP family; use IPv4 or IPv6", s)
}

// Bits returns the length of addresses of the family: 32 or 128.
func (f Family) Bits() int {
	if f == IPv4 {
		return 32
	}
	return 128
}

// Of returns the family of a valid address.
func Of(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// Parse parses one address in canonical form. Other forms are errors, because agents compare addresses as text (Cilium
// fact 5).
func Parse(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	switch {
	case err != nil:
		return netip.Addr{}, fmt.Errorf("%q is not an IP address", s)
	case a.Zone() != "":
		return netip.Addr{}, fmt.Errorf("%q has a zone; a pod address has none", s)
	case a.Is4In6():
		return netip.Addr{}, fmt.Errorf("%q is an IPv4 address mapped into IPv6; write %s", s, a.Unmap())
	case a.String() != s:
		return netip.Addr{}, fmt.Errorf("%q is not in canonical form; write %s", s, a)
	}
	return a, nil
}

// ParseAll parses addresses in canonical form. Other texts are left out.
func ParseAll(texts []string) []netip.Addr {
	var addrs []netip.Addr
	for _, s := range texts {
		if a, err := Parse(s); err == nil {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// Join returns addresses as text for messages, such as "10.240.1.10, fd00:240::1:a".
func Join(addrs []netip.Addr) string {
	return strings.Join(Strings(addrs), ", ")
}

// Strings returns the canonical text of each address.
func Strings(addrs []netip.Addr) []string {
	out := make([]string, len(addrs))
	for i, a := range addrs {
		out[i] = a.String()
	}
	return out
}

// Besides returns the addresses that a FixedIP does not name although it names another address of the same family. An
// agent whose pool has both for one pod chooses at random (Cilium fact 1). recorded is in the form that Parse reads;
// invalid values are ignored.
func Besides(addrs []netip.Addr, recorded []string) []netip.Addr {
	var found []netip.Addr
	for _, a := range addrs {
		sameFamily := slices.ContainsFunc(recorded, func(ip string) bool {
			other, err := Parse(ip)
			return err == nil && Of(other) == Of(a)
		})
		if sameFamily && !slices.Contains(recorded, a.String()) {
			found = append(found, a)
		}
	}
	return found
}
