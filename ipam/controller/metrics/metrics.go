// Package metrics holds the metrics of the controller. It counts and nothing else: nothing may be
// decided from what it holds. What can be read from the ledger and the caches is read when somebody
// asks, so that it costs no event anything.
//
// Unlike the scheduler's, some of these are labelled with the node: how full the pool of each is, is
// what alerts are made of.
package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"fixedip.io/fixedip/ipam/core/subnetplan"
)

const namespace = "fixedip"

// Cause is why an address was taken from the pod that had it.
type Cause string

const (
	// Deleted: the record of the address is being deleted.
	Deleted Cause = "record-deleted"
	// Beside: the record names another address, or another node. Two claims were made, and the bind
	// decided.
	Beside Cause = "superseded"
	// Unrecorded: a claim whose pod and whose workload are gone before it was recorded.
	Unrecorded Cause = "unrecorded"
)

var (
	poolWrites = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace,
		Name:      "pool_writes_total",
		Help:      "Patches of CiliumNodes by the controller, by result: applied, or conflict (the pool had changed meanwhile, and it was decided anew).",
	}, []string{"result"})
	poolWriteRequests = prometheus.NewHistogram(prometheus.HistogramOpts{
		Namespace: namespace,
		Name:      "pool_write_requests",
		Help:      "Requests that one patch of a CiliumNode by the controller fulfilled.",
		Buckets:   prometheus.ExponentialBuckets(1, 2, 9),
	})
	releases = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace,
		Name:      "releases_total",
		Help:      "Addresses that were taken from an identity, by cause: record-deleted, superseded (a second claim, or one beside the record), unrecorded (pod and workload gone before there was a record).",
	}, []string{"cause"})
	adoptions = prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: namespace,
		Name:      "adoptions_total",
		Help:      "Pods of other schedulers that were given the address that they ran with.",
	})
	subnetAssignments = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace,
		Name:      "subnet_assignments_total",
		Help:      "Times that a node was given subnets, by origin: carved (from the cluster pools), brought (by the node itself), returned (to the node that had them before), inherited (by a node that joined), adopted (by one that had others).",
	}, []string{"origin"})
	lastReconcile = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: namespace,
		Name:      "last_reconcile_timestamp_seconds",
		Help:      "When the controller named was last done with an object, without an error. Every reservation is looked at again within five minutes.",
	}, []string{"controller"})
)

var register sync.Once

// Register adds the metrics to those that the manager serves, the gauges read from w. A later world
// takes the place of an earlier one.
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

// Collectors are all metrics of the controller's own.
func Collectors() []prometheus.Collector {
	return append(verifyCollectors(), poolWrites, poolWriteRequests, releases, adoptions, subnetAssignments, lastReconcile, gauges)
}

// Released counts addresses that were taken from an identity.
func Released(c Cause, addresses int) { releases.WithLabelValues(string(c)).Add(float64(addresses)) }

// Adopted counts a pod that was adopted.
func Adopted() { adoptions.Inc() }

// SubnetsAssigned counts that a node was given subnets.
func SubnetsAssigned(o subnetplan.Origin) { subnetAssignments.WithLabelValues(string(o)).Inc() }

// Reconciled notes that a controller was done with an object.
func Reconciled(controller string, at time.Time) {
	lastReconcile.WithLabelValues(controller).Set(float64(at.Unix()))
}

// PoolWrites counts what the writer of pools does: it is a ciliumpool.Observer.
type PoolWrites struct{}

// Wrote counts a patch that was applied.
func (PoolWrites) Wrote(requests int) {
	poolWrites.WithLabelValues("applied").Inc()
	poolWriteRequests.Observe(float64(requests))
}

// Conflicted counts a patch that was refused.
func (PoolWrites) Conflicted() { poolWrites.WithLabelValues("conflict").Inc() }
