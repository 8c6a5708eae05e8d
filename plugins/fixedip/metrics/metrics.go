// Package metrics holds the metrics of the plugin FixedIP, which the scheduler serves among its own.
// It counts and nothing else: nothing may be decided from what it holds. A label has few values, all
// of which are written down here: never the name of a pod or a node.
package metrics

import (
	"sync"
	"time"

	k8smetrics "k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

const namespace = "fixedip"

// Result is how the claim of a pod ended.
type Result string

const (
	// Written: it was written into the pool of the node, and the plugin's own watch has shown it.
	Written Result = "written"
	// Standing: the pool gave the pod its addresses already, and nothing was written.
	Standing Result = "standing"
	// Taken: somebody else has the address.
	Taken Result = "taken"
	// Gone: the CiliumNode is not there any more.
	Gone Result = "gone"
	// TimedOut: not done within claimTimeout. It may be written nevertheless.
	TimedOut Result = "timeout"
	// Moved: the addresses were moved to the pod's new node, and the plugin's own watch has shown it.
	Moved Result = "moved"
	// Unfenced: the pod that had the addresses may still run.
	Unfenced Result = "unfenced"
	// Failed: any other error. It may be written nevertheless.
	Failed Result = "error"
)

// Cause is what woke a pod that the plugin had refused.
type Cause string

const (
	// Owner: something about the pod's reservation.
	Owner Cause = "owner"
	// Node: the node that owns the pod's address, or its pool.
	Node Cause = "node"
	// Room: a node with more room than before.
	Room Cause = "room"
	// Annotation: the pod's annotations were changed.
	Annotation Cause = "annotation"
	// Failover: the pod's node could not take it, and it is tried on others.
	Failover Cause = "failover"
	// Missed: something changed while the pod was still being refused.
	Missed Cause = "missed"
)

var (
	claims = k8smetrics.NewCounterVec(&k8smetrics.CounterOpts{
		Namespace:      namespace,
		Name:           "claims_total",
		Help:           "Claims of addresses for pods that were about to be bound, by result: written, standing (it stood already, nothing was written), taken, gone (the CiliumNode), timeout, error.",
		StabilityLevel: k8smetrics.ALPHA,
	}, []string{"result"})
	claimDuration = k8smetrics.NewHistogram(&k8smetrics.HistogramOpts{
		Namespace:      namespace,
		Name:           "claim_duration_seconds",
		Help:           "How long the claims took that were written: from PreBind until the scheduler's own watch showed the entry.",
		Buckets:        k8smetrics.ExponentialBuckets(0.001, 2, 15),
		StabilityLevel: k8smetrics.ALPHA,
	})
	batchSize = k8smetrics.NewHistogram(&k8smetrics.HistogramOpts{
		Namespace:      namespace,
		Name:           "claim_batch_size",
		Help:           "Claims that went together in one patch of a CiliumNode. Its count is that of the patches.",
		Buckets:        k8smetrics.ExponentialBuckets(1, 2, 9),
		StabilityLevel: k8smetrics.ALPHA,
	})
	moves = k8smetrics.NewCounterVec(&k8smetrics.CounterOpts{
		Namespace:      namespace,
		Name:           "moves_total",
		Help:           "Moves of a pod's addresses to another node than the one that had them, by result: moved, unfenced (the pod that had them may still run), taken (another has the address, or its home says otherwise), gone (a CiliumNode), timeout, error.",
		StabilityLevel: k8smetrics.ALPHA,
	}, []string{"result"})
	conflicts = k8smetrics.NewCounter(&k8smetrics.CounterOpts{
		Namespace:      namespace,
		Name:           "pool_write_conflicts_total",
		Help:           "Patches of CiliumNodes that were refused, since the pool had changed meanwhile, and were decided anew.",
		StabilityLevel: k8smetrics.ALPHA,
	})
	cycles = k8smetrics.NewCounterVec(&k8smetrics.CounterOpts{
		Namespace:      namespace,
		Name:           "scheduling_cycles_total",
		Help:           "Scheduling cycles of pods with a fixed address that passed PreFilter, by whether they were steered to the node that owns the address.",
		StabilityLevel: k8smetrics.ALPHA,
	}, []string{"steered"})
	wakeups = k8smetrics.NewCounterVec(&k8smetrics.CounterOpts{
		Namespace:      namespace,
		Name:           "wakeups_total",
		Help:           "Pods put back into the queue after the plugin had refused them, by cause: owner (their reservation), node (the owner node), room, annotation, failover (their node could not take them, and others are tried), missed (a change while they were being refused).",
		StabilityLevel: k8smetrics.ALPHA,
	}, []string{"cause"})
)

var register sync.Once

// Register adds the metrics to those that the scheduler serves, the gauges read from w. Profiles
// share one world, so that it counts once for all; a later world takes the place of an earlier one.
func Register(w World) {
	gauges.world.Store(&w)
	register.Do(func() {
		legacyregistry.MustRegister(claims, claimDuration, moves, batchSize, conflicts, cycles, wakeups)
		legacyregistry.CustomMustRegister(gauges)
	})
}

// ClaimEnded counts a claim, and how long it took where it was written.
func ClaimEnded(r Result, took time.Duration) {
	claims.WithLabelValues(string(r)).Inc()
	if r == Written {
		claimDuration.Observe(took.Seconds())
	}
}

// MoveEnded counts a move.
func MoveEnded(r Result) { moves.WithLabelValues(string(r)).Inc() }

// Cycle counts a scheduling cycle.
func Cycle(steered bool) {
	if steered {
		cycles.WithLabelValues("true").Inc()
	} else {
		cycles.WithLabelValues("false").Inc()
	}
}

// Woken counts a pod that was woken.
func Woken(c Cause) { wakeups.WithLabelValues(string(c)).Inc() }

// PoolWrites counts what the writer of pools does: it is a ciliumpool.Observer.
type PoolWrites struct{}

// Wrote counts a patch that was applied.
func (PoolWrites) Wrote(requests int) { batchSize.Observe(float64(requests)) }

// Conflicted counts a patch that was refused.
func (PoolWrites) Conflicted() { conflicts.Inc() }
