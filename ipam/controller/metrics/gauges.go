// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"maps"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/sets"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/conformance"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/nodeutil"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reservation"
)

// Sources is the state from which the gauges are read whenever metrics are served.
type Sources struct {
	Ledger *ledger.Ledger
	// PerNode decides whether the gauges with the label node are served.
	PerNode PerNode
	// MinFree is the number of free dynamic entries below which the controller adds entries to the pool of a node.
	MinFree int
	// ResyncPeriod is the maximum interval between two reconciliations of a FixedIP.
	ResyncPeriod time.Duration
	// Now returns the current time.
	Now func() time.Time
	// ClusterPools are the CIDRs from which subnets of nodes are taken.
	ClusterPools []address.ClusterPool
	// FixedIPs counts the FixedIPs by state.
	FixedIPs func() map[reservation.State]int
	// Mismatched counts the FixedIPs whose pods run with a mismatch, by one of conformance.MismatchReasons. oldest is the time
	// since which the pod with the oldest mismatch has had it; zero: there is none.
	Mismatched func() (counts map[string]int, oldest time.Time)
	// OldestRelease returns the start of the oldest deletion of a FixedIP that is still under way; zero: there is none.
	OldestRelease func() time.Time
	// Subnets returns the number of orphaned subnets with reserved addresses, and the CIDRs of all NodeSubnets.
	Subnets func() (orphaned int, claimed []netip.Prefix)
	// Strict returns the names of the strict nodes, whose pools offer no dynamic addresses.
	Strict func() sets.Set[string]
	// Waiting returns the number of unschedulable pods whose addresses are on a node, for each node that has such pods.
	Waiting func() []WaitingPods
	// Barriers returns the number of nodes with barrier requests that have no answer yet, and the number of those whose
	// agents are overdue.
	Barriers func() (pending, overdue int)
	// Synced reports for each informer whether it has seen every object that existed at the start.
	// Key: the plural name of the resource.
	Synced func() map[string]bool
}

// WaitingPods is the number of unschedulable pods whose addresses are on one node, and the state of the node.
type WaitingPods struct {
	Node  string
	State nodeutil.NodeState
	Pods  int
	// Since is the earliest podutil.UnschedulableSince of the pods: the time at which a scheduler marked the first of them as
	// unschedulable, or the time of its creation if that pod had a scheduling gate before.
	Since time.Time
}

// PerNode decides whether the gauges with the label node are served. Each node has up to 17 such series, so that a cluster
// with thousands of nodes would have more of them than Prometheus should get from one program.
type PerNode string

// The values of PerNode.
const (
	// PerNodeAuto serves the gauges in clusters of up to maxPerNode nodes.
	PerNodeAuto PerNode = "auto"
	PerNodeOn   PerNode = "on"
	PerNodeOff  PerNode = "off"
)

// PerNodeValues are all values of PerNode.
var PerNodeValues = []PerNode{PerNodeAuto, PerNodeOn, PerNodeOff}

// maxPerNode is the number of nodes up to which PerNodeAuto serves the gauges with the label node.
const maxPerNode = 1000

// serves reports whether the gauges with the label node are served in a cluster of that many nodes.
func (p PerNode) serves(nodes int) bool {
	return p == PerNodeOn || p == PerNodeAuto && nodes <= maxPerNode
}

// lowShare is the share of the addresses of a node's subnets below which the node counts as low on free addresses.
const lowShare = 0.05

// described contains the descriptions of all gauges that are read from Sources.
var described []*prometheus.Desc

func describe(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, labels, nil)
	described = append(described, d)
	return d
}

var (
	poolAddresses = describe("pool_addresses",
		"Entries in the pool of a node, by state: free and used (dynamic entries, by the last report of the agent; a strict node has no series free), fixed (owned by a pod; on a strict node also by a pod without a fixed address), cooldown (released or withdrawn, and offered to no pod), node (owned by the node itself), other.", "node", "family", "state")
	subnetFree = describe("subnet_free_addresses",
		"Addresses in the subnets of a node that a new claim can take.", "node", "family")
	subnetSize = describe("subnet_addresses",
		"Addresses in the subnets of a node.", "node", "family")
	nodes = describe("nodes",
		"Nodes with a subnet of a family.", "family")
	entries = describe("entries",
		"Entries in the pools of all nodes, by state: the sum of fixedip_pool_addresses over the nodes.", "family", "state")
	freeAddresses = describe("free_addresses",
		"Addresses in the subnets of all nodes that a new claim can take.", "family")
	addresses = describe("addresses",
		"Addresses in the subnets of all nodes.", "family")
	nodesLowOnDynamic = describe("nodes_low_on_dynamic_addresses",
		"Nodes, except strict nodes, whose pools have less than a quarter of pools.minFree free dynamic addresses.", "family")
	nodesLowOnFree = describe("nodes_low_on_free_addresses",
		"Nodes with less than 5 % of their addresses left for new claims.", "family")
	overlappingNodes = describe("overlapping_subnet_nodes",
		"Nodes whose subnets overlap subnets of another node. No address in these subnets is claimed.")
	freeSubnets = describe("cluster_pool_free_subnets",
		"Subnets of a cluster pool that are free for new nodes.", "cidr", "family")
	clusterPoolSubnets = describe("cluster_pool_subnets",
		"Subnets of a cluster pool, free or not.", "cidr", "family")
	orphanedSubnets = describe("orphaned_subnets",
		"Orphaned subnets with reserved addresses.")
	nodesWithoutSubnet = describe("nodes_without_subnet",
		"Nodes without a subnet in a family that has cluster pools. If it stays above 0, the events of these Nodes give the reason, usually that the cluster pools are exhausted.", "family")
	reservations = describe("reservations",
		"FixedIPs by state: Reserved, InUse, Releasing, or None if the FixedIP has not been reconciled yet.", "state")
	unrecorded = describe("claims_without_fixedip",
		"Pods with an owned pool entry and no FixedIP: the pod is not bound yet, the FixedIP was refused, or the entry was written by hand. Pods without a fixed address on strict nodes do not count.")
	mismatchedPods = describe("mismatched_pods",
		"Running pods that do not conform to their FixedIP, by reason: WrongAddress (a restart helps), NoPoolEntry (a restart does not help now), NoCiliumEndpoint, Restarting (the pod was evicted), RestartBlocked (the eviction was refused). The reason is that of the condition AsReserved.", "reason")
	oldestMismatch = describe("oldest_mismatch_seconds",
		"Time for which a pod has not conformed to its FixedIP, of the pod for which it is longest; 0 if there is none.")
	oldestRelease = describe("oldest_release_seconds",
		"Time since the deletion of a FixedIP that has not ended, of the FixedIP for which it is longest; 0 if there is none.")
	oldestUnrecorded = describe("oldest_claim_without_fixedip_seconds",
		"Time for which a pod has had a claim and no FixedIP, of the pod for which it is longest; 0 if there is none. It is measured from the first scrape that found the claim without a FixedIP. Entries that were written by hand do not count.")
	podsWaiting = describe("pods_waiting_for_node",
		"Unschedulable pods whose address belongs to a node, by state of the node: the sum of fixedip_waiting_pods over the nodes.", "state")
	oldestWaiting = describe("oldest_pod_waiting_for_node_seconds",
		"Longest time for which a pod has been unschedulable whose address belongs to a node, by state of that node; 0 if there is no such pod. If the pod had a scheduling gate before, the time since its creation counts.", "state")
	waitingPods = describe("waiting_pods",
		"Unschedulable pods whose address belongs to a node, by node and state of the node: ready, cordoned, being deleted, not ready, gone.", "node", "state")
	barriersPending = describe("agent_barriers_pending",
		"Nodes with barrier requests that the Cilium agent has not answered yet.")
	barriersOverdue = describe("agent_barriers_overdue",
		"Nodes with barrier requests that the Cilium agent has not answered in time: within two minutes, or eight of its report intervals if that is longer. Cooldowns on these nodes do not end, and no pod takes over their addresses.")
	watchSynced = describe("informer_synced",
		"1 if the informer has seen every object of the resource that existed at the start, else 0. The controller is not ready until all are 1.", "resource")
)

var sources atomic.Pointer[Sources]

// sourcesCollector collects the gauges that are read from Sources.
type sourcesCollector struct{}

// Describe sends the descriptions of all gauges.
func (sourcesCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range described {
		ch <- d
	}
}

// Collect sends the values of all gauges.
func (sourcesCollector) Collect(ch chan<- prometheus.Metric) {
	c := collection{Sources: sources.Load(), ch: ch}
	c.now = c.Now()
	c.nodes()
	c.waiting()
	c.records()
	pending, overdue := c.Barriers()
	c.gauge(barriersPending, float64(pending))
	c.gauge(barriersOverdue, float64(overdue))
	for resource, synced := range c.Synced() {
		value := 0.0
		if synced {
			value = 1
		}
		c.gauge(watchSynced, value, resource)
	}
}

// collection is one call of Collect.
type collection struct {
	*Sources
	ch  chan<- prometheus.Metric
	now time.Time
	// perNode is true if the gauges with the label node are sent; nodes sets it.
	perNode bool
}

func (c *collection) gauge(d *prometheus.Desc, value float64, labels ...string) {
	c.ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}

// age returns the time since t in seconds; 0 if t is zero or later than now.
func (c *collection) age(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return max(0, c.now.Sub(t).Seconds())
}

// sums are the gauges of all nodes for one family.
type sums struct {
	nodes, lowOnDynamic, lowOnFree int
	states                         map[pool.State]int
	// size and free are floats, because the subnets of two nodes may have more IPv6 addresses than an integer can count.
	size, free float64
}

// nodes sends the gauges of nodes and cluster pools.
func (c *collection) nodes() {
	overlapping := 0
	orphaned, claimed := c.Subnets()
	// lacking counts the nodes without a subnet of each family that has cluster pools. Key: the family.
	lacking := map[address.Family]int{}
	for _, p := range c.ClusterPools {
		lacking[p.Family()] = 0
	}
	all := map[address.Family]*sums{}
	for _, f := range address.Families {
		all[f] = &sums{states: map[pool.State]int{pool.StateFree: 0, pool.StateUsed: 0, pool.StateFixed: 0, pool.StateCooldown: 0, pool.StateNode: 0, pool.StateOther: 0}}
	}
	strict := c.Strict()
	pools := c.Ledger.Nodes()
	c.perNode = c.PerNode.serves(len(pools))
	for _, n := range pools {
		claimed = append(claimed, n.Subnets...)
		for f := range lacking {
			if !n.HasFamily(f) {
				lacking[f]++
			}
		}
		if _, ok := c.Ledger.OverlapsWith(n.Name); ok {
			overlapping++
		}
		for _, f := range address.Families {
			if n.HasFamily(f) {
				c.node(n, f, strict.Has(n.Name), all[f])
			}
		}
	}
	for f, s := range all {
		c.gauge(nodes, float64(s.nodes), f.String())
		c.gauge(nodesLowOnDynamic, float64(s.lowOnDynamic), f.String())
		c.gauge(nodesLowOnFree, float64(s.lowOnFree), f.String())
		c.gauge(addresses, s.size, f.String())
		c.gauge(freeAddresses, s.free, f.String())
		for state, value := range s.states {
			c.gauge(entries, float64(value), f.String(), string(state))
		}
	}
	c.gauge(overlappingNodes, float64(overlapping))
	for f, nodes := range lacking {
		c.gauge(nodesWithoutSubnet, float64(nodes), f.String())
	}
	c.gauge(orphanedSubnets, float64(orphaned))
	taken := address.Union(claimed)
	for _, p := range c.ClusterPools {
		c.gauge(freeSubnets, p.FreeSubnets(taken), p.CIDR.String(), p.Family().String())
		c.gauge(clusterPoolSubnets, p.Subnets(), p.CIDR.String(), p.Family().String())
	}
}

// node adds a node to the sums of a family, and sends the gauges of the node if c.perNode is true.
func (c *collection) node(n pool.NodePool, f address.Family, strict bool, s *sums) {
	size, free := float64(c.Ledger.SubnetSize(n.Name, f)), float64(c.Ledger.Available(n.Name, f))
	states := n.CountStates(f)
	s.nodes++
	s.size += size
	s.free += free
	if free < lowShare*size {
		s.lowOnFree++
	}
	if !strict && 4*states[pool.StateFree] < c.MinFree {
		s.lowOnDynamic++
	}
	for state, value := range states {
		if state == pool.StateFree && strict {
			continue
		}
		s.states[state] += value
		if c.perNode {
			c.gauge(poolAddresses, float64(value), n.Name, f.String(), string(state))
		}
	}
	if c.perNode {
		c.gauge(subnetFree, free, n.Name, f.String())
		c.gauge(subnetSize, size, n.Name, f.String())
	}
}

// waiting sends the gauges of pods that wait for a node.
func (c *collection) waiting() {
	counts, oldest := map[nodeutil.NodeState]int{}, map[nodeutil.NodeState]float64{}
	waiting := c.Waiting()
	// waiting may contain nodes that no longer exist; c.perNode was decided without these nodes.
	perNode := c.perNode && c.PerNode.serves(len(waiting))
	for _, on := range waiting {
		counts[on.State] += on.Pods
		oldest[on.State] = max(oldest[on.State], c.age(on.Since))
		if perNode {
			c.gauge(waitingPods, float64(on.Pods), on.Node, string(on.State))
		}
	}
	for _, state := range nodeutil.NodeStates {
		c.gauge(podsWaiting, float64(counts[state]), string(state))
		c.gauge(oldestWaiting, oldest[state], string(state))
	}
}

// records sends the gauges of FixedIPs and of claims without one.
func (c *collection) records() {
	states := map[reservation.State]int{reservation.Unseen: 0, reservation.Reserved: 0, reservation.InUse: 0, reservation.Releasing: 0}
	maps.Copy(states, c.FixedIPs())
	for state, value := range states {
		c.gauge(reservations, float64(value), cmp.Or(string(state), "None"))
	}
	c.gauge(oldestRelease, c.age(c.OldestRelease()))
	mismatched, since := c.Mismatched()
	for _, reason := range conformance.MismatchReasons {
		c.gauge(mismatchedPods, float64(mismatched[reason]), reason)
	}
	c.gauge(oldestMismatch, c.age(since))
	claims, others := c.Ledger.Unrecorded()
	c.gauge(unrecorded, float64(len(claims)+len(others)))
	c.gauge(oldestUnrecorded, c.age(unrecordedSince.observe(claims, c.now)))
}
