// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"encoding/binary"
	"net/netip"
)

// probes is the discard-only prefix of RFC 6666. No node, pod or service ever has an address of it, so that a
// probe never collides with an entry of a pool.
var probes = netip.MustParsePrefix("100::/64")

// Probe returns the address that asks an agent one question, see package agentview. Each question needs a nonce of
// its own.
func Probe(nonce uint64) netip.Addr {
	bytes := probes.Addr().As16()
	binary.BigEndian.PutUint64(bytes[8:], nonce)
	return netip.AddrFrom16(bytes)
}

// IsProbe reports whether an address is a probe.
func IsProbe(a netip.Addr) bool { return probes.Contains(a) }
