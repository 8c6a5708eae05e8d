// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package nodepool

import (
	"fmt"
	"net/netip"
	"testing"

	"fixedip.io/fixedip/ipam/controller/config"
	"fixedip.io/fixedip/ipam/core/nodepool"
	"fixedip.io/fixedip/ipam/core/pool"
)

// A pool has to hold what the pods that wait for an address will take, whatever the agent has told by
// then. Pods that have their addresses already must not make believe that the agent has told of its own.
func TestPoolIsForAllThatWait(t *testing.T) {
	for name, used := range map[string]map[netip.Addr]string{
		"the agent has told nothing":            {},
		"the agent has told of its router":      {netip.MustParseAddr("10.0.0.1"): "router"},
		"the agent has told of all of its own":  {netip.MustParseAddr("10.0.0.1"): "router", netip.MustParseAddr("10.0.0.2"): "health", netip.MustParseAddr("10.0.0.3"): "ingress"},
		"the agent has told of pods, and of it": {netip.MustParseAddr("10.0.0.1"): "router", netip.MustParseAddr("10.0.0.4"): "default/runs-0"},
	} {
		t.Run(name, func(t *testing.T) {
			const own, running, waiting = 3, 20, 15
			n := pool.Node{Name: "node-1", Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}, HasPool: true, Entries: map[netip.Addr]pool.Entry{}, Used: used}
			d := &duty{cfg: config.Config{Watermark: nodepool.Watermark{Free: 4}}, capacity: defaultPodCapacity, kept: func(netip.Addr) bool { return false }}
			next := netip.MustParseAddr("10.0.0.1")
			for i := range own + running {
				n.Entries[next] = pool.Entry{}
				if i >= own {
					d.taken = append(d.taken, next)
				}
				next = next.Next()
			}
			for i := range waiting {
				d.waiting = append(d.waiting, pool.OwnerKey("default", fmt.Sprintf("waits-%d", i)))
			}
			if got := len(n.With(d.first(n)).Entries); got < own+running+waiting {
				t.Errorf("the pool has %d entries for %d of the node, %d pods that run and %d that wait", got, own, running, waiting)
			}
		})
	}
}
