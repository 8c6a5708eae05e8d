// Package address is the arithmetic of addresses and subnets: which addresses a node's subnet
// offers, in which order they are taken, and how a cluster pool is cut into subnets.
//
// It is pure: it knows netip and nothing of Kubernetes, Cilium, clocks, clients or goroutines.
package address

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Family is an address family. Its value is the version number of the protocol.
type Family uint8

// The two families. An address that is IPv4 mapped into IPv6 counts as neither: Parse refuses it.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// Families lists both, in the order in which they are shown and written everywhere.
var Families = [...]Family{IPv4, IPv6}

// String is the name that Kubernetes uses for the family: IPv4 or IPv6.
func (f Family) String() string {
	switch f {
	case IPv4:
		return "IPv4"
	case IPv6:
		return "IPv6"
	}
	return fmt.Sprintf("Family(%d)", uint8(f))
}

// ParseFamily reads IPv4 or IPv6, as Kubernetes spells them.
func ParseFamily(s string) (Family, error) {
	for _, f := range Families {
		if s == f.String() {
			return f, nil
		}
	}
	return 0, fmt.Errorf("%q is not an IP family; use IPv4 or IPv6", s)
}

// Bits is the length of an address of the family: 32 or 128.
func (f Family) Bits() int {
	if f == IPv4 {
		return 32
	}
	return 128
}

// Of is the family of a valid address.
func Of(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// Parse reads one address in its canonical text form, the only form that Cilium's map keys match
// (an agent compares them as text).
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

// Join writes addresses for people: "10.240.1.10" or "10.240.1.10, fd00:240::1:a".
func Join(addrs []netip.Addr) string {
	return strings.Join(Strings(addrs), ", ")
}

// Strings is the canonical text of each address.
func Strings(addrs []netip.Addr) []string {
	out := make([]string, len(addrs))
	for i, a := range addrs {
		out[i] = a.String()
	}
	return out
}

// Besides are those of the addresses that a record does not name although it names one of their family: an agent
// whose pool has both for a pod chooses between the two as it pleases. recorded is in the form that Parse reads; what
// is none counts for nothing.
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
