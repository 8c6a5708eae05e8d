// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"fixedip.io/fixedip/ipam/core/subnetplan"
)

const namespace = "fixedip"

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
	poolWrites = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace,
		Name:      "pool_writes_total",
		Help:      "Patches of CiliumNodes by the controller, by result: applied, or conflict (the pool had changed, and the patch was decided again).",
	}, []string{"result"})
	poolWriteRequests = prometheus.NewHistogram(prometheus.HistogramOpts{
		Namespace: namespace,
		Name:      "pool_write_requests",
		Help:      "Number of requests in one patch of a CiliumNode by the controller.",
		Buckets:   prometheus.ExponentialBuckets(1, 2, 9),
	})
	releases = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace,
		Name:      "releases_total",
		Help:      "Released addresses, by cause: fixedip-deleted, superseded (a second claim, or a claim that the FixedIP does not name), unrecorded (pod and workload were deleted before the claim had a FixedIP).",
	}, []string{"cause"})
	adoptions = prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: namespace,
		Name:      "adoptions_total",
		Help:      "Pods whose running address became their fixed address (adoption).",
	})
	subnetAssignments = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace,
		Name:      "subnet_assignments_total",
		Help:      "Times that a node was given subnets, by origin: carved (from the cluster pools), brought (by the node itself), returned (to the node that had them before), inherited (by a node that joined), adopted (by one that had others).",
	}, []string{"origin"})
	lastReconcile = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: namespace,
		Name:      "last_reconcile_timestamp_seconds",
		Help:      "Time of the last successful reconciliation, by controller. Every FixedIP is reconciled at least once per --resync-period.",
	}, []string{"controller"})
)

var register sync.Once

// Register adds the metrics to those that the manager serves. Gauges are read from w; a later call
// replaces it.
func Register(w World) {
	gauges.world.Store(&w)
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
		ctrlmetrics.Registry.MustRegister(Collectors()...)
	})
}

// Collectors returns all metrics of the controller.
func Collectors() []prometheus.Collector {
	return append(append(verifyCollectors(), barrierCollectors()...), poolWrites, poolWriteRequests, releases, adoptions, subnetAssignments, lastReconcile, gauges)
}

// Released counts released addresses.
func Released(c Cause, addresses int) { releases.WithLabelValues(string(c)).Add(float64(addresses)) }

// Adopted counts an adoption.
func Adopted() { adoptions.Inc() }

// SubnetsAssigned counts an assignment of subnets to a node.
func SubnetsAssigned(o subnetplan.Origin) { subnetAssignments.WithLabelValues(string(o)).Inc() }

// Reconciled records the time at which a controller reconciled an object without an error.
func Reconciled(controller string, at time.Time) {
	lastReconcile.WithLabelValues(controller).Set(float64(at.Unix()))
}

// PoolWrite counts a patch of the pool writer: it was applied, or refused because of a conflict.
func PoolWrite(requests int, conflict bool) {
	if conflict {
		poolWrites.WithLabelValues("conflict").Inc()
		return
	}
	poolWrites.WithLabelValues("applied").Inc()
	poolWriteRequests.Observe(float64(requests))
}
