// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package nodepool

import (
	"fmt"
	"net/netip"
	"testing"

	"fixedip.io/fixedip/ipam/core/pool"
)

// TestEntriesForWaitingPods checks that the pool gets entries for all pods that wait for an address, independently of
// the owners that the agent has reported. The IPs of running pods must not count as reported addresses of the node
// itself.
func TestEntriesForWaitingPods(t *testing.T) {
	for name, used := range map[string]map[netip.Addr]string{
		"nothing reported":                   {},
		"router reported":                    {netip.MustParseAddr("10.0.0.1"): "router"},
		"all addresses of the node reported": {netip.MustParseAddr("10.0.0.1"): "router", netip.MustParseAddr("10.0.0.2"): "health", netip.MustParseAddr("10.0.0.3"): "ingress"},
		"router and a pod reported":          {netip.MustParseAddr("10.0.0.1"): "router", netip.MustParseAddr("10.0.0.4"): "default/runs-0"},
		"router and health of both families reported": {netip.MustParseAddr("10.0.0.1"): "router", netip.MustParseAddr("fd00::1"): "router",
			netip.MustParseAddr("10.0.0.2"): "health", netip.MustParseAddr("fd00::2"): "health"},
	} {
		t.Run(name, func(t *testing.T) {
			const own, running, waiting = 3, 20, 15
			n := pool.NodePool{Name: "node-1", Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}, HasPool: true, Entries: map[netip.Addr]pool.Entry{}, Used: used}
			s := &State{Watermark: Watermark{Free: 4}, Capacity: 110, Reserved: func(netip.Addr) bool { return false }}
			next := netip.MustParseAddr("10.0.0.1")
			for i := range own + running {
				n.Entries[next] = pool.Entry{}
				if i >= own {
					s.PodIPs = append(s.PodIPs, next)
				}
				next = next.Next()
			}
			for i := range waiting {
				s.Waiting = append(s.Waiting, pool.OwnerKey("default", fmt.Sprintf("waits-%d", i)))
			}
			edits, _ := s.FirstEntries(n)
			if got := len(n.With(edits).Entries); got < own+running+waiting {
				t.Errorf("got %d entries, want at least %d for the node, %d for running pods and %d for waiting pods", got, own, running, waiting)
			}
		})
	}
}
