// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import "github.com/prometheus/client_golang/prometheus"

// The metrics of conformance: differences between what runs and what is recorded.
var (
	// Mismatches counts pods found with other addresses than their FixedIP names, by reason.
	Mismatches = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace,
		Name:      "mismatches_total",
		Help:      "Pods found with other addresses than their FixedIP names, by reason.",
	}, []string{"reason"})
	// Restarts counts restarts of pods, by result.
	Restarts = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace,
		Name:      "restarts_total",
		Help:      "Restarts of pods because of a mismatch, by result: evicted, blocked (refused by a PodDisruptionBudget), deferred (the limit for concurrent restarts was reached).",
	}, []string{"result"})
	// Conflicts is the number of addresses in conflict, by kind.
	Conflicts = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: namespace,
		Name:      "conflicting_addresses",
		Help:      "Addresses in conflict, by kind: pods (two pods run with it), fixedips (two FixedIPs reserve it), pools (two pools offer it), stranger (a pod runs with an address that is reserved for another pod).",
	}, []string{"kind"})
	// EndpointsRemoved counts removed CiliumEndpoints, by cause.
	EndpointsRemoved = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace,
		Name:      "ciliumendpoints_removed_total",
		Help:      "CiliumEndpoints that were deleted, or whose finalizers were removed, by cause.",
	}, []string{"cause"})
	// EndpointsReowned counts corrected owner references of CiliumEndpoints.
	EndpointsReowned = prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: namespace,
		Name:      "ciliumendpoint_ownerref_fixes_total",
		Help:      "Owner references of CiliumEndpoints that named a previous pod and were corrected.",
	})
	// EndpointsMissing counts running pods whose agent did not create a CiliumEndpoint in time.
	EndpointsMissing = prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: namespace,
		Name:      "ciliumendpoints_missing_total",
		Help:      "Running pods whose agent did not create a CiliumEndpoint in time.",
	})
	// EndpointsMissingNow is the number of running pods without a CiliumEndpoint.
	EndpointsMissingNow = prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: namespace,
		Name:      "ciliumendpoints_missing",
		Help:      "Running pods that have no CiliumEndpoint.",
	})
	// EndpointEvictionsPaused is 1 while no pod is evicted for a missing CiliumEndpoint, because too many are missing.
	EndpointEvictionsPaused = prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: namespace,
		Name:      "ciliumendpoint_evictions_paused",
		Help:      "1 while so many pods have no CiliumEndpoint that none is evicted for it.",
	})
)

func verifyCollectors() []prometheus.Collector {
	return []prometheus.Collector{Mismatches, Restarts, Conflicts, EndpointsRemoved, EndpointsReowned, EndpointsMissing, EndpointsMissingNow, EndpointEvictionsPaused}
}
