// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import "github.com/prometheus/client_golang/prometheus"

// The metrics of conformance: differences between what runs and what is recorded.
var (
	mismatches = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace,
		Name:      "mismatches_total",
		Help:      "Pods found with other addresses than their FixedIP names, by reason.",
	}, []string{"reason"})
	restarts = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace,
		Name:      "restarts_total",
		Help:      "Restarts of pods because of a mismatch, by result: evicted, blocked (refused by a PodDisruptionBudget), deferred (the limit for concurrent restarts was reached).",
	}, []string{"result"})
	conflicts = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: namespace,
		Name:      "conflicting_addresses",
		Help:      "Addresses that more than one has, holds or offers, by kind: pods, fixedips, pools, stranger (a pod runs with what is kept for another).",
	}, []string{"kind"})
	endpointsRemoved = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace,
		Name:      "ciliumendpoints_removed_total",
		Help:      "CiliumEndpoints that were deleted, or whose finalizers were removed, by cause.",
	}, []string{"cause"})
	endpointsReowned = prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: namespace,
		Name:      "ciliumendpoint_ownerref_fixes_total",
		Help:      "Owner references of CiliumEndpoints that named a previous pod and were corrected.",
	})
	endpointsMissing = prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: namespace,
		Name:      "ciliumendpoints_missing_total",
		Help:      "Running pods whose agent did not create a CiliumEndpoint in time.",
	})
)

func verifyCollectors() []prometheus.Collector {
	return []prometheus.Collector{mismatches, restarts, conflicts, endpointsRemoved, endpointsReowned, endpointsMissing}
}

// Mismatch counts a pod with other addresses than its FixedIP names.
func Mismatch(reason string) { mismatches.WithLabelValues(reason).Inc() }

// Restart counts a restart, by result.
func Restart(result string) { restarts.WithLabelValues(result).Inc() }

// Conflicting sets the number of addresses in conflict. Key: the kind of conflict.
func Conflicting(addresses map[string]int) {
	for kind, n := range addresses {
		conflicts.WithLabelValues(kind).Set(float64(n))
	}
}

// EndpointRemoved counts a removed CiliumEndpoint.
func EndpointRemoved(cause string) { endpointsRemoved.WithLabelValues(cause).Inc() }

// EndpointReowned counts a corrected owner reference of a CiliumEndpoint.
func EndpointReowned() { endpointsReowned.Inc() }

// EndpointMissing counts a running pod without a CiliumEndpoint.
func EndpointMissing() { endpointsMissing.Inc() }
