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
	// Barriers counts the nodes whose agents have not answered yet, and those of them whose agents are overdue.
	Barriers func() (pending, overdue int)
	// Synced reports for each informer whether it has seen every object that existed at the start.
	// Key: the plural name of the resource.
	Synced func() map[string]bool
}

// described are the descriptions of all gauges that are read from the World.
var described []*prometheus.Desc

func describe(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, labels, nil)
	described = append(described, d)
	return d
}

var (
	poolAddresses = describe("pool_addresses",
		"Entries in the pool of a node, by state: free and used (dynamic entries, by the last report of the agent), fixed (owned by a pod), cooldown (released recently), node (owned by the node itself), other.", "node", "family", "state")
	subnetFree = describe("subnet_free_addresses",
		"Addresses in the subnets of a node that a new claim can take.", "node", "family")
	disputedNodes = describe("overlapping_subnet_nodes",
		"Nodes whose subnets overlap subnets of another node. No address in them is claimed.")
	freeSubnets = describe("cluster_pool_free_subnets",
		"Subnets of a cluster pool that are free for new nodes.", "cidr")
	orphanedSubnets = describe("orphaned_subnets",
		"Subnets whose node is gone and in which addresses are kept.")
	lackingNodes = describe("nodes_without_subnet",
		"Nodes without a subnet in a family that has cluster pools. If it stays above 0, the cluster pools are exhausted.", "family")
	reservations = describe("reservations",
		"FixedIPs by phase. None: the FixedIP has not been reconciled yet.", "phase")
	unrecorded = describe("claims_without_fixedip",
		"Pods with an owned pool entry and no FixedIP: claimed a moment ago, or written by hand.")
	barriersPending = describe("agent_barriers_pending",
		"Nodes whose Cilium agents have been asked, or are about to be, and have not answered.")
	barriersOverdue = describe("agent_barriers_overdue",
		"Nodes whose Cilium agents have not answered for more than two minutes. Addresses of these nodes are not released or taken over.")
	watchSynced = describe("informer_synced",
		"1 if the informer has seen every object of the resource that existed at the start, else 0. The controller is not ready before.", "resource")
)

var world atomic.Pointer[World]

// worldCollector collects the gauges.
type worldCollector struct{}

// Describe sends the descriptions of all gauges.
func (worldCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range described {
		ch <- d
	}
}

// Collect sends the values of all gauges.
func (worldCollector) Collect(ch chan<- prometheus.Metric) {
	w := world.Load()
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
		for _, f := range address.Families {
			if !n.HasFamily(f) {
				continue
			}
			for state, value := range n.CountStates(f) {
				gauge(poolAddresses, float64(value), n.Name, f.String(), string(state))
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
	pending, overdue := w.Barriers()
	gauge(barriersPending, float64(pending))
	gauge(barriersOverdue, float64(overdue))
	for resource, synced := range w.Synced() {
		value := 0.0
		if synced {
			value = 1
		}
		gauge(watchSynced, value, resource)
	}
}
