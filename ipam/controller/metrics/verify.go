package metrics

import "github.com/prometheus/client_golang/prometheus"

// The metrics of what was found wrong. The values of their labels are named in package plan.
var (
	mismatches = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace,
		Name:      "mismatches_total",
		Help:      "Pods that were found not to run as is kept for them, by reason; Adopted are first placements whose address was kept.",
	}, []string{"reason"})
	restarts = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace,
		Name:      "restarts_total",
		Help:      "Restarts of pods because of a mismatch, by result: evicted, blocked (a PodDisruptionBudget refused it), deferred (as many as allowed were restarting already).",
	}, []string{"result"})
	conflicts = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: namespace,
		Name:      "conflicting_addresses",
		Help:      "Addresses that more than one has, holds or offers, by kind: pods, fixedips, pools, stranger (a pod runs with what is kept for another).",
	}, []string{"kind"})
	endpointsRemoved = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace,
		Name:      "ciliumendpoints_removed_total",
		Help:      "CiliumEndpoints that were deleted, or let go of where finalizers held them, by cause.",
	}, []string{"cause"})
	endpointsReowned = prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: namespace,
		Name:      "ciliumendpoints_reowned_total",
		Help:      "CiliumEndpoints of running pods whose owner reference named a former pod and was put right.",
	})
	endpointsMissing = prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: namespace,
		Name:      "ciliumendpoints_missing_total",
		Help:      "Running pods without a CiliumEndpoint whose agent did not make one in time.",
	})
)

func verifyCollectors() []prometheus.Collector {
	return []prometheus.Collector{mismatches, restarts, conflicts, endpointsRemoved, endpointsReowned, endpointsMissing}
}

// Mismatch counts a pod that does not run as is kept for it.
func Mismatch(reason string) { mismatches.WithLabelValues(reason).Inc() }

// Restart counts a restart by its result.
func Restart(result string) { restarts.WithLabelValues(result).Inc() }

// Conflicting sets how many addresses are in conflict. Key: the kind.
func Conflicting(addresses map[string]int) {
	for kind, n := range addresses {
		conflicts.WithLabelValues(kind).Set(float64(n))
	}
}

// EndpointRemoved counts a CiliumEndpoint that was removed.
func EndpointRemoved(cause string) { endpointsRemoved.WithLabelValues(cause).Inc() }

// EndpointReowned counts a CiliumEndpoint whose owner reference was put right.
func EndpointReowned() { endpointsReowned.Inc() }

// EndpointMissing counts a pod that has none.
func EndpointMissing() { endpointsMissing.Inc() }
