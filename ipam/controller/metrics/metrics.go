// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package metrics defines the metrics of the controller.
//
// No decision may depend on a metric. Gauges that can be computed from the ledger and the caches are
// computed when metrics are served, so that they cost nothing while objects change.
//
// Unlike the scheduler's metrics, some of these have the node as a label. PerNode limits their number: sums without that
// label are always present, and alerts use only these (ADR 0043).
package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"fixedip.io/fixedip/ipam/core/conformance"
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
	// and the pod was bound with the other claim.
	Superseded Cause = "superseded"
	// Unrecorded means that the claim had no FixedIP, for example because the pod and its workload were deleted first.
	Unrecorded Cause = "unrecorded"
)

var (
	poolWrites = counters("pool_writes_total", "result",
		"Patches of CiliumNodes by the controller, except withdrawals of release handshakes and writes of assigned subnets, by result: applied, or conflict (the CiliumNode had changed, and the patch wrote nothing).")
	poolWriteRequests = histogram("pool_write_requests",
		"Number of pool changes that the controller combined in one applied patch of a CiliumNode; one change may write several entries.", 1, 9)
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
	addressDuration = histogram("pod_address_duration_seconds",
		"Time from the moment at which the leader saw that a pod with a fixed address was bound to the moment at which it saw an address in the status of the pod. Pods that were bound before the controller became the leader do not count.", 0.25, 12)
	resyncPeriod = gauge("resync_period_seconds",
		"Value of --resync-period: every FixedIP is reconciled at least once in this time.")
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

// initial contains label values of counters. Register serves these with the value 0 from the start, so that an increase from 0
// is visible and an alert can distinguish 0 from a program that is not scraped.
var initial = []struct {
	metric interface {
		WithLabelValues(...string) prometheus.Counter
	}
	values []string
}{
	{Mismatches, []string{conformance.ReasonWrongAddress, conformance.ReasonNoPoolEntry, conformance.ReasonNoCiliumEndpoint}},
	{Restarts, []string{"evicted", "blocked", "deferred"}},
	{EndpointsRemoved, []string{"Stuck", "Podless", "Stale", "MisAddressed"}},
	{poolWrites, []string{"applied", "conflict"}},
}

// Register adds the metrics to those that the manager serves. sourcesCollector reads its gauges from w whenever metrics are
// served. A later call replaces w.
func Register(w Sources) {
	sources.Store(&w)
	resyncPeriod.Set(w.ResyncPeriod.Seconds())
	register.Do(func() {
		for _, i := range initial {
			for _, value := range i.values {
				i.metric.WithLabelValues(value)
			}
		}
		for _, kind := range []string{"pods", "fixedips", "pools", "wrong_pod"} {
			Conflicts.WithLabelValues(kind)
		}
		// Until the first reconciliation the time of the start counts, so that a controller that never reconciles is noticed.
		for _, controller := range []string{"fixedip", "release", "subnet"} {
			Reconciled(controller, w.Now())
		}
		for _, cause := range []Cause{Deleted, Superseded, Unrecorded} {
			releases.WithLabelValues(string(cause))
		}
		for _, origin := range subnetplan.Origins {
			subnetAssignments.WithLabelValues(string(origin))
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

// Reconciled records the time of the last successful reconcile of a controller.
func Reconciled(controller string, at time.Time) {
	lastReconcile.WithLabelValues(controller).Set(float64(at.Unix()))
}

// BarrierAnswered records the duration of an agent barrier that a Cilium agent has answered.
func BarrierAnswered(after time.Duration) { barrierDuration.Observe(after.Seconds()) }

// AddressSeen records the time from the bind of a pod with a fixed address to an address in its status.
func AddressSeen(after time.Duration) { addressDuration.Observe(after.Seconds()) }

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
