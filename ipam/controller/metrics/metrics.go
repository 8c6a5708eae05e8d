// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package metrics defines the metrics of the controller.
//
// No decision may depend on a metric. Gauges that can be computed from the ledger and the caches are
// computed when metrics are served, so that they cost nothing while objects change.
//
// Unlike the scheduler's metrics, some of these have the node as a label: alerts need the fill level
// of each pool.
package metrics

import (
	"cmp"
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/apimachinery/pkg/util/sets"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/nodeutil"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reservation"
	"fixedip.io/fixedip/ipam/core/subnetplan"
	"fixedip.io/fixedip/ipam/version"
)

const namespace = "fixedip"

// registry contains all metrics of the controller.
var registry = prometheus.NewRegistry()

func counter(name, help string) prometheus.Counter {
	return promauto.With(registry).NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help})
}

func counters(name, label, help string) *prometheus.CounterVec {
	return promauto.With(registry).NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, []string{label})
}

func gauge(name, help string) prometheus.Gauge {
	return promauto.With(registry).NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help})
}

func gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	return promauto.With(registry).NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, labels)
}

func histogram(name, help string, start float64, buckets int) prometheus.Histogram {
	return promauto.With(registry).NewHistogram(prometheus.HistogramOpts{
		Namespace: namespace, Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(start, 2, buckets),
	})
}

// Cause is the reason for a release.
type Cause string

const (
	// Deleted means that the FixedIP of the address is being deleted.
	Deleted Cause = "fixedip-deleted"
	// Superseded means that the FixedIP names another address or another node, for example because two claims were written
	// and the pod was bound with the other one.
	Superseded Cause = "superseded"
	// Unrecorded means that the claim had no FixedIP, for example because the pod and its workload were deleted first.
	Unrecorded Cause = "unrecorded"
)

var (
	poolWrites = counters("pool_writes_total", "result",
		"Patches of CiliumNodes by the controller, except those of release handshakes and of assigned subnets, by result: applied, or conflict (the CiliumNode had changed, and the patch wrote nothing).")
	poolWriteRequests = histogram("pool_write_requests",
		"Number of requests in one patch of a CiliumNode by the controller.", 1, 9)
	releases = counters("releases_total", "cause",
		"Released addresses, by cause: fixedip-deleted, superseded (for example a second claim, a claim that the FixedIP does not name, or the target of a move that did not take place), unrecorded (the claim had no FixedIP, for example because the pod and its workload were deleted first).")
	subnetAssignments = counters("subnet_assignments_total", "origin",
		"Assignments of subnets to nodes, by origin: cluster_pool, node_spec (Node.spec.podCIDRs), restored (the node had them before), new_node (a node without subnets inherited them), existing_node (a node with subnets inherited others).")
	lastReconcile = gauges("last_reconcile_timestamp_seconds",
		"Time of the last successful reconciliation, by controller. Every FixedIP is reconciled at least once per --resync-period.", "controller")
	configInfo = gauges("config_info",
		"1 for the hash of the settings that both programs share. Programs with different hashes have different settings.", "hash")
	buildInfo       = gauges("build_info", "1 for the version of fixedip and that of the Kubernetes libraries.", "version", "kubernetes")
	barrierDuration = histogram("agent_barrier_duration_seconds",
		"Time from the oldest open barrier request for a node, or from the previous answer if that is later, to the answer of its Cilium agent.", 0.25, 12)
)

// Metrics of the controllers of mismatches, conflicts, adoption and CiliumEndpoints.
var (
	Mismatches = counters("mismatches_total", "reason",
		"Mismatches found between running pods and their FixedIPs, and missing CiliumEndpoints of pods with a FixedIP, by reason.")
	Restarts = counters("restarts_total", "result",
		"Evictions of pods because of a wrong address, a lost pool entry or a missing CiliumEndpoint, by result: evicted, blocked (the API server refused the eviction, usually because of a PodDisruptionBudget), deferred (a limit for concurrent restarts was reached, or another pod of the workload was not ready).")
	Conflicts = gauges("conflicting_addresses",
		"Addresses in conflict, by kind: pods (more than one pod runs with it), fixedips (more than one FixedIP reserves it), pools (more than one pool offers it), wrong_pod (a pod runs with an address that is reserved for another pod).", "kind")
	EndpointsRemoved = counters("ciliumendpoints_removed_total", "cause",
		"CiliumEndpoints that were deleted, or whose finalizers were removed, by cause.")
	Adoptions = counter("adoptions_total",
		"Pods whose running address became their fixed address (adoption).")
	EndpointOwnerRefFixes = counter("ciliumendpoint_ownerref_fixes_total",
		"Owner references of CiliumEndpoints that named a previous pod and were corrected.")
	EndpointsMissing = counter("ciliumendpoints_missing_total",
		"Running pods whose agent did not create a CiliumEndpoint in time.")
	EndpointsMissingNow = gauge("ciliumendpoints_missing",
		"Running pods whose CiliumEndpoint has been missing for longer than --cep-grace-period.")
	EndpointEvictionsPaused = gauge("ciliumendpoint_evictions_paused",
		"1 while so many pods have no CiliumEndpoint that evictions of such pods are paused.")
)

var register sync.Once

// Register adds the metrics to those that the manager serves. sourcesCollector reads its gauges from w whenever metrics are
// served. A later call replaces w.
func Register(w Sources) {
	sources.Store(&w)
	register.Do(func() {
		for _, cause := range []Cause{Deleted, Superseded, Unrecorded} {
			releases.WithLabelValues(string(cause))
		}
		for _, origin := range subnetplan.Origins {
			subnetAssignments.WithLabelValues(string(origin))
		}
		for _, result := range []string{"applied", "conflict"} {
			poolWrites.WithLabelValues(result)
		}
		buildInfo.WithLabelValues(version.Fixedip(), version.Kubernetes()).Set(1)
		registry.MustRegister(sourcesCollector{})
		ctrlmetrics.Registry.MustRegister(registry)
	})
}

// Configured sets the hash of the settings that both programs share.
func Configured(hash string) {
	configInfo.Reset()
	configInfo.WithLabelValues(hash).Set(1)
}

// Released counts released addresses.
func Released(c Cause, addresses int) { releases.WithLabelValues(string(c)).Add(float64(addresses)) }

// SubnetsAssigned counts an assignment of subnets to a node.
func SubnetsAssigned(o subnetplan.Origin) { subnetAssignments.WithLabelValues(string(o)).Inc() }

// Reconciled records at as the time of the last reconcile of a controller.
func Reconciled(controller string, at time.Time) {
	lastReconcile.WithLabelValues(controller).Set(float64(at.Unix()))
}

// BarrierAnswered records the duration of an agent barrier that a Cilium agent has answered.
func BarrierAnswered(after time.Duration) { barrierDuration.Observe(after.Seconds()) }

// PoolWrite counts a patch of the pool writer as applied or as a conflict. requests is the number of requests in the patch;
// it is recorded only if the patch was applied.
func PoolWrite(requests int, conflict bool) {
	if conflict {
		poolWrites.WithLabelValues("conflict").Inc()
		return
	}
	poolWrites.WithLabelValues("applied").Inc()
	poolWriteRequests.Observe(float64(requests))
}

// Sources is the state from which the gauges are read whenever metrics are served.
type Sources struct {
	Ledger *ledger.Ledger
	// ClusterPools are the CIDRs from which subnets of nodes are taken.
	ClusterPools []address.ClusterPool
	// FixedIPs counts the FixedIPs by state.
	FixedIPs func() map[reservation.State]int
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
}

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
	overlappingNodes = describe("overlapping_subnet_nodes",
		"Nodes whose subnets overlap subnets of another node. No address in these subnets is claimed.")
	freeSubnets = describe("cluster_pool_free_subnets",
		"Subnets of a cluster pool that are free for new nodes.", "cidr")
	orphanedSubnets = describe("orphaned_subnets",
		"Orphaned subnets with reserved addresses.")
	nodesWithoutSubnet = describe("nodes_without_subnet",
		"Nodes without a subnet in a family that has cluster pools. If it stays above 0, the events of these Nodes give the reason, usually that the cluster pools are exhausted.", "family")
	reservations = describe("reservations",
		"FixedIPs by state: Reserved, InUse, Releasing, or None if the FixedIP has not been reconciled yet.", "state")
	unrecorded = describe("claims_without_fixedip",
		"Pods with an owned pool entry and no FixedIP: the pod is not bound yet, the FixedIP was refused, or the entry was written by hand. Pods without a fixed address on strict nodes do not count.")
	waitingPods = describe("waiting_pods",
		"Unschedulable pods whose address belongs to a node, by node and state of the node: ready, cordoned, not ready, gone.", "node", "state")
	barriersPending = describe("agent_barriers_pending",
		"Nodes with barrier requests that the Cilium agent has not answered yet.")
	barriersOverdue = describe("agent_barriers_overdue",
		"Nodes with barrier requests that the Cilium agent has not answered for more than two minutes. Cooldowns on these nodes do not end, and no pod takes over their addresses.")
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
	w := sources.Load()
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	overlapping := 0
	orphaned, claimed := w.Subnets()
	// lacking counts nodes without a subnet. Key: the family.
	lacking := map[address.Family]int{}
	for _, p := range w.ClusterPools {
		lacking[p.Family()] = 0
	}
	strict := w.Strict()
	for _, n := range w.Ledger.Nodes() {
		claimed = append(claimed, n.Subnets...)
		for f := range lacking {
			if !n.HasFamily(f) {
				lacking[f]++
			}
		}
		if _, ok := w.Ledger.OverlapsWith(n.Name); ok {
			overlapping++
		}
		for _, f := range address.Families {
			if !n.HasFamily(f) {
				continue
			}
			for state, value := range n.CountStates(f) {
				if state == pool.StateFree && strict.Has(n.Name) {
					continue
				}
				gauge(poolAddresses, float64(value), n.Name, f.String(), string(state))
			}
			gauge(subnetFree, float64(w.Ledger.Available(n.Name, f)), n.Name, f.String())
		}
	}
	gauge(overlappingNodes, float64(overlapping))
	for f, nodes := range lacking {
		gauge(nodesWithoutSubnet, float64(nodes), f.String())
	}

	states := map[reservation.State]int{reservation.Unseen: 0, reservation.Reserved: 0, reservation.InUse: 0, reservation.Releasing: 0}
	maps.Copy(states, w.FixedIPs())
	gauge(orphanedSubnets, float64(orphaned))
	taken := address.Union(claimed)
	for _, p := range w.ClusterPools {
		gauge(freeSubnets, p.FreeSubnets(taken), p.CIDR.String())
	}
	for state, value := range states {
		gauge(reservations, float64(value), cmp.Or(string(state), "None"))
	}
	gauge(unrecorded, float64(w.Ledger.Unrecorded()))
	for _, on := range w.Waiting() {
		gauge(waitingPods, float64(on.Pods), on.Node, string(on.State))
	}
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
