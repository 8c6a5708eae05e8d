// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"net/netip"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
)

// World is the state that the gauges are read from whenever metrics are served.
type World struct {
	Ledger *ledger.Ledger
	// ClusterPools are the CIDRs from which subnets of nodes are taken.
	ClusterPools []address.ClusterPool
	// Phases counts the FixedIPs by phase.
	Phases func() map[v1alpha1.Phase]int
	// Subnets returns how many orphaned subnets have reserved addresses, and the CIDRs of all NodeSubnets.
	Subnets func() (orphaned int, claimed []netip.Prefix)
	// Synced reports for each informer whether it has seen every object that existed at the start.
	// Key: the plural name of the resource.
	Synced func() map[string]bool
}

// The states of an entry in a pool.
const (
	stateFree    = "free"
	stateUsed    = "used"
	stateFixed   = "fixed"
	stateResting = "cooldown"
	stateNode    = "node"
	stateOther   = "other"
)

var (
	poolAddresses = prometheus.NewDesc("fixedip_pool_addresses",
		"Entries in the pool of a node, by state: free and used (dynamic entries, by the last report of the agent), fixed (owned by a pod), cooldown (released recently), node (owned by the node itself), other.",
		[]string{"node", "family", "state"}, nil)
	subnetFree = prometheus.NewDesc("fixedip_subnet_free_addresses",
		"Addresses in the subnets of a node that a new claim can take.",
		[]string{"node", "family"}, nil)
	disputedNodes = prometheus.NewDesc("fixedip_overlapping_subnet_nodes",
		"Nodes whose subnets overlap subnets of another node. No address in them is claimed.",
		nil, nil)
	freeSubnets = prometheus.NewDesc("fixedip_cluster_pool_free_subnets",
		"Subnets of a cluster pool that are free for new nodes.",
		[]string{"cidr"}, nil)
	orphanedSubnets = prometheus.NewDesc("fixedip_orphaned_subnets",
		"Subnets whose node is gone and in which addresses are kept.",
		nil, nil)
	lackingNodes = prometheus.NewDesc("fixedip_nodes_without_subnet",
		"Nodes without a subnet in a family that has cluster pools. If it stays above 0, the cluster pools are exhausted.",
		[]string{"family"}, nil)
	reservations = prometheus.NewDesc("fixedip_reservations",
		"FixedIPs by phase. None: the FixedIP has not been reconciled yet.",
		[]string{"phase"}, nil)
	unrecorded = prometheus.NewDesc("fixedip_claims_without_fixedip",
		"Pods with an owned pool entry and no FixedIP: claimed a moment ago, or written by hand.",
		nil, nil)
	watchSynced = prometheus.NewDesc("fixedip_informer_synced",
		"1 if the informer has seen every object of the resource that existed at the start, else 0. The controller is not ready before.",
		[]string{"resource"}, nil)
)

// worldCollector collects the gauges.
type worldCollector struct{ world atomic.Pointer[World] }

var gauges = &worldCollector{}

// Describe sends the descriptions of all gauges.
func (c *worldCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{poolAddresses, subnetFree, disputedNodes, freeSubnets, orphanedSubnets, lackingNodes, reservations, unrecorded, watchSynced} {
		ch <- d
	}
}

// Collect sends the values of all gauges.
func (c *worldCollector) Collect(ch chan<- prometheus.Metric) {
	w := c.world.Load()
	if w == nil {
		return
	}
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	disputed := 0
	orphaned, claimed := w.Subnets()
	// lacking counts nodes without a subnet. Key: the family.
	lacking := map[address.Family]int{}
	for _, p := range w.ClusterPools {
		lacking[p.Family()] = 0
	}
	for _, n := range w.Ledger.Nodes() {
		claimed = append(claimed, n.Subnets...)
		for f := range lacking {
			if !n.HasFamily(f) {
				lacking[f]++
			}
		}
		if _, ok := w.Ledger.OverlapsWith(n.Name); ok {
			disputed++
		}
		states := count(n)
		for _, f := range address.Families {
			if !n.HasFamily(f) {
				continue
			}
			for state, value := range states[f] {
				gauge(poolAddresses, float64(value), n.Name, f.String(), state)
			}
			gauge(subnetFree, float64(w.Ledger.Available(n.Name, f)), n.Name, f.String())
		}
	}
	gauge(disputedNodes, float64(disputed))
	for f, nodes := range lacking {
		gauge(lackingNodes, float64(nodes), f.String())
	}

	phases := map[string]int{"None": 0, string(v1alpha1.PhaseReserved): 0, string(v1alpha1.PhaseInUse): 0, string(v1alpha1.PhaseReleasing): 0}
	for phase, value := range w.Phases() {
		phases[cmp.Or(string(phase), "None")] = value
	}
	gauge(orphanedSubnets, float64(orphaned))
	taken := address.Union(claimed)
	for _, p := range w.ClusterPools {
		gauge(freeSubnets, p.FreeSubnets(taken), p.CIDR.String())
	}
	for phase, value := range phases {
		gauge(reservations, float64(value), phase)
	}
	gauge(unrecorded, float64(w.Ledger.Unrecorded()))
	for resource, synced := range w.Synced() {
		value := 0.0
		if synced {
			value = 1
		}
		gauge(watchSynced, value, resource)
	}
}

// count counts the entries of a pool by family and state. The states that alerts use are present
// even if they are 0.
func count(n pool.NodePool) map[address.Family]map[string]int {
	states := map[address.Family]map[string]int{}
	for _, f := range address.Families {
		states[f] = map[string]int{stateFree: 0, stateUsed: 0, stateFixed: 0}
	}
	for a, e := range n.Entries {
		states[address.Of(a)][state(n, a, e)]++
	}
	return states
}

func state(n pool.NodePool, a netip.Addr, e pool.Entry) string {
	switch {
	case e.Kind == pool.Cooldown:
		return stateResting
	case e.Kind == pool.Dynamic && n.InUse(a):
		return stateUsed
	case e.Kind == pool.Dynamic:
		return stateFree
	case e.Kind == pool.Owned:
		return stateFixed
	case e.Kind == pool.NodeOwned:
		return stateNode
	}
	return stateOther
}
