// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"fixedip.io/fixedip/ipam/core/subnetplan"
)

const namespace = "fixedip"

// registry has all metrics of the controller.
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

func gauges(name, label, help string) *prometheus.GaugeVec {
	return promauto.With(registry).NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, []string{label})
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
	// Beside means that the FixedIP names another address or another node. Two claims were written, and the
	// bind decided between them.
	Beside Cause = "superseded"
	// Unrecorded means that the pod and its workload were deleted before the claim had a FixedIP.
	Unrecorded Cause = "unrecorded"
)

var (
	poolWrites = counters("pool_writes_total", "result",
		"Patches of CiliumNodes by the controller, by result: applied, or conflict (the pool had changed, and the patch was decided again).")
	poolWriteRequests = histogram("pool_write_requests",
		"Number of requests in one patch of a CiliumNode by the controller.", 1, 9)
	releases = counters("releases_total", "cause",
		"Released addresses, by cause: fixedip-deleted, superseded (a second claim, or a claim that the FixedIP does not name), unrecorded (pod and workload were deleted before the claim had a FixedIP).")
	subnetAssignments = counters("subnet_assignments_total", "origin",
		"Times that a node was given subnets, by origin: carved (from the cluster pools), brought (by the node itself), returned (to the node that had them before), inherited (by a node that joined), adopted (by one that had others).")
	lastReconcile = gauges("last_reconcile_timestamp_seconds", "controller",
		"Time of the last successful reconciliation, by controller. Every FixedIP is reconciled at least once per --resync-period.")
	barrierDuration = histogram("agent_barrier_duration_seconds",
		"Time from the first question about a node to the answer of its Cilium agent.", 0.25, 12)
)

// The metrics of conformance: differences between what runs and what is recorded.
var (
	Mismatches = counters("mismatches_total", "reason",
		"Pods found with other addresses than their FixedIP names, by reason.")
	Restarts = counters("restarts_total", "result",
		"Restarts of pods because of a mismatch, by result: evicted, blocked (refused by a PodDisruptionBudget), deferred (the limit for concurrent restarts was reached).")
	Conflicts = gauges("conflicting_addresses", "kind",
		"Addresses in conflict, by kind: pods (two pods run with it), fixedips (two FixedIPs reserve it), pools (two pools offer it), stranger (a pod runs with an address that is reserved for another pod).")
	EndpointsRemoved = counters("ciliumendpoints_removed_total", "cause",
		"CiliumEndpoints that were deleted, or whose finalizers were removed, by cause.")
	Adoptions = counter("adoptions_total",
		"Pods whose running address became their fixed address (adoption).")
	EndpointsReowned = counter("ciliumendpoint_ownerref_fixes_total",
		"Owner references of CiliumEndpoints that named a previous pod and were corrected.")
	EndpointsMissing = counter("ciliumendpoints_missing_total",
		"Running pods whose agent did not create a CiliumEndpoint in time.")
	EndpointsMissingNow = gauge("ciliumendpoints_missing",
		"Running pods that have no CiliumEndpoint.")
	EndpointEvictionsPaused = gauge("ciliumendpoint_evictions_paused",
		"1 while so many pods have no CiliumEndpoint that none is evicted for it.")
)

var register sync.Once

// Register adds the metrics to those that the manager serves. Gauges are read from w; a later call
// replaces it.
func Register(w World) {
	world.Store(&w)
	register.Do(func() {
		for _, cause := range []Cause{Deleted, Beside, Unrecorded} {
			releases.WithLabelValues(string(cause))
		}
		for _, origin := range subnetplan.Origins {
			subnetAssignments.WithLabelValues(string(origin))
		}
		for _, result := range []string{"applied", "conflict"} {
			poolWrites.WithLabelValues(result)
		}
		registry.MustRegister(worldCollector{})
		ctrlmetrics.Registry.MustRegister(registry)
	})
}

// Released counts released addresses.
func Released(c Cause, addresses int) { releases.WithLabelValues(string(c)).Add(float64(addresses)) }

// SubnetsAssigned counts an assignment of subnets to a node.
func SubnetsAssigned(o subnetplan.Origin) { subnetAssignments.WithLabelValues(string(o)).Inc() }

// Reconciled records the time at which a controller reconciled an object without an error.
func Reconciled(controller string, at time.Time) {
	lastReconcile.WithLabelValues(controller).Set(float64(at.Unix()))
}

// BarrierAnswered counts an answer of a Cilium agent.
func BarrierAnswered(after time.Duration) { barrierDuration.Observe(after.Seconds()) }

// PoolWrite counts a patch of the pool writer: it was applied, or refused because of a conflict.
func PoolWrite(requests int, conflict bool) {
	if conflict {
		poolWrites.WithLabelValues("conflict").Inc()
		return
	}
	poolWrites.WithLabelValues("applied").Inc()
	poolWriteRequests.Observe(float64(requests))
}
