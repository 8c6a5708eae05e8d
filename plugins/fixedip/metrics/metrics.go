// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	k8smetrics "k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/version"
)

const namespace = "fixedip"

// Result is the outcome of a claim or of a migration.
type Result string

const (
	// Written means that the claim was written into the pool of the node.
	Written Result = "written"
	// Existing means that the pool already had the entries of the pod, and nothing was written.
	Existing Result = "existing"
	// Conflict means that the address is not available, for example because another pod has it, or that a migration cannot
	// continue, for example because a pool does not have the entry that the migration requires.
	Conflict Result = "conflict"
	// NodeGone means that the CiliumNode of a claim, or one of those of a migration, does not exist.
	NodeGone Result = "node_gone"
	// TimedOut means that the claim or migration did not succeed within claimTimeout. It may have been written all the same.
	TimedOut Result = "timeout"
	// Migrated means that the addresses were moved to the pool of the pod's new node.
	Migrated Result = "migrated"
	// OldPodRunning means that the addresses were not moved because the previous pod may still run with them.
	OldPodRunning Result = "old_pod_running"
	// Failed means any other error. The claim or migration may have been written.
	Failed Result = "error"
)

// Cause is a reason for which a waiting pod is put back into the scheduling queue.
type Cause string

const (
	// Owner means that the pod's reservation or claim changed, or that the pod waits for an address of another pod, and that
	// other pod ended or its reservation changed.
	Owner Cause = "owner"
	// Node means that a node that the pod waits for, the pool of such a node, or its subnets changed. It also means that a node
	// that the pod may use was created, that a change of a node allows the pod to run there, or that after a change of the
	// cluster a node may be able to run an orphaned pod.
	Node Cause = "node"
	// FreeAddress means that an address became free.
	FreeAddress Cause = "free_address"
	// Slot means that the free slots of the pod's workload changed.
	Slot Cause = "slot"
	// Workload means that the pod's workload became known, or its annotations changed.
	Workload Cause = "workload"
	// Quota means that the quota of the pod's namespace allows more FixedIPs.
	Quota Cause = "quota"
	// Annotation means that the annotations of the pod changed.
	Annotation Cause = "annotation"
	// Failover means that the node of the pod's address cannot take the pod, and other nodes are tried.
	Failover Cause = "failover"
	// Missed means that a relevant change arrived while the pod was being refused.
	Missed Cause = "missed"
)

var (
	claims = counter("claims_total", "result",
		"Claims of addresses for pods about to be bound, by result: written, existing (the pool already had the entry, nothing was written), conflict (the address is not available), node_gone (the CiliumNode does not exist), timeout, error.")
	claimDuration = histogram("claim_duration_seconds", k8smetrics.ExponentialBuckets(0.001, 2, 15),
		"Duration of written claims, from PreBind until the API server has answered.")
	batchSize = histogram("claim_batch_size", k8smetrics.ExponentialBuckets(1, 2, 9),
		"Number of claims, or of steps of migrations, in one patch of a CiliumNode. The count is the number of patches.")
	migrations = counter("migrations_total", "result",
		"Migrations of addresses to another node, by result: migrated, old_pod_running (the previous pod may still run), conflict (the address is not available, or a pool does not have the entry that the migration requires), node_gone (a CiliumNode does not exist), timeout, error.")
	conflicts = k8smetrics.NewCounter(&k8smetrics.CounterOpts{Namespace: namespace, Name: "pool_write_conflicts_total", StabilityLevel: k8smetrics.ALPHA,
		Help: "Patches of CiliumNodes that were refused because the CiliumNode had changed, and were decided again."})
	prefilters = counter("prefilter_total", "narrowed",
		"Scheduling cycles of pods with a fixed address that passed PreFilter, by whether PreFilter restricted the nodes.")
	configInfo = k8smetrics.NewGaugeVec(&k8smetrics.GaugeOpts{Namespace: namespace, Name: "config_info", StabilityLevel: k8smetrics.ALPHA,
		Help: "1 for the hash of the settings that both programs share. Programs with different hashes have different settings."}, []string{"hash"})
	buildInfo = k8smetrics.NewGaugeVec(&k8smetrics.GaugeOpts{Namespace: namespace, Name: "build_info", StabilityLevel: k8smetrics.ALPHA,
		Help: "1 for the version of fixedip and that of the Kubernetes libraries."}, []string{"version", "kubernetes"})
	requeues = counter("requeues_total", "reason",
		"Waiting pods that were put back into the scheduling queue, by reason: owner (the reservation changed, or the pod that uses the address ended), node (a node that the pod waits for, or its pool, changed; a node that the pod may use was created, uncordoned or relabelled; or a node may be able to run a pod whose subnet is orphaned), free_address (an address became free), slot (the free slots of the workload changed), workload (the workload became known, or its annotations changed), quota (the namespace may have more FixedIPs), annotation, failover (other nodes are tried), missed (a change while the pod was being refused).")
)

func counter(name, label, help string) *k8smetrics.CounterVec {
	return k8smetrics.NewCounterVec(&k8smetrics.CounterOpts{Namespace: namespace, Name: name, Help: help, StabilityLevel: k8smetrics.ALPHA}, []string{label})
}

func histogram(name string, buckets []float64, help string) *k8smetrics.Histogram {
	return k8smetrics.NewHistogram(&k8smetrics.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets, StabilityLevel: k8smetrics.ALPHA})
}

// initial contains the label values that each counter has from the start, so that an increase from 0 is visible and an alert
// can tell 0 from a program that is not scraped.
var initial = map[*k8smetrics.CounterVec][]string{
	claims:     texts(Written, Existing, Conflict, NodeGone, TimedOut, Failed),
	migrations: texts(Migrated, OldPodRunning, Conflict, NodeGone, TimedOut, Failed),
	prefilters: {"true", "false"},
	requeues:   texts(Owner, Node, FreeAddress, Slot, Workload, Quota, Annotation, Failover, Missed),
}

func texts[T ~string](values ...T) (all []string) {
	for _, v := range values {
		all = append(all, string(v))
	}
	return all
}

// queues contains the queues of waiting pods, one for each profile.
var queues struct {
	sync.Mutex
	// counts contains the argument of each call of AddQueue since the last call of Register.
	counts []func() map[Cause]Unplaced
}

// Unplaced describes the pods that wait for one cause.
type Unplaced struct {
	Pods int
	// Oldest is the time at which the first of the pods was created.
	Oldest time.Time
}

// Awaited are the causes by which waiting pods are counted. A pod that waits for several causes counts for the first of them.
// For example, a pod whose address is on a node waits for the node and also for a change of its reservation, and counts for
// Node. Annotation stands for pods that only a change of their annotations can help.
var Awaited = []Cause{Quota, Slot, FreeAddress, Node, Workload, Owner, Annotation}

// AddQueue adds a queue of waiting pods to the gauges of unplaced pods. counts returns the pods in the queue. Key: the cause
// that the pods wait for, one of Awaited. Call AddQueue after Register.
func AddQueue(counts func() map[Cause]Unplaced) {
	queues.Lock()
	defer queues.Unlock()
	queues.counts = append(queues.counts, counts)
}

// unplaced returns the pods of all queues that wait for a cause.
func unplaced(c Cause) (all Unplaced) {
	queues.Lock()
	defer queues.Unlock()
	for _, counts := range queues.counts {
		u := counts()[c]
		all.Pods += u.Pods
		if all.Oldest.IsZero() || !u.Oldest.IsZero() && u.Oldest.Before(all.Oldest) {
			all.Oldest = u.Oldest
		}
	}
	return all
}

var register sync.Once

// Register adds the metrics to those that the scheduler serves. The gauges read the argument of the last call, which
// all profiles share.
func Register(w Sources) {
	sources.Store(&w)
	queues.Lock()
	queues.counts = nil
	queues.Unlock()
	register.Do(func() {
		legacyregistry.MustRegister(claims, claimDuration, migrations, batchSize, conflicts, prefilters, requeues, configInfo, buildInfo)
		for metric, values := range initial {
			for _, value := range values {
				metric.WithLabelValues(value)
			}
		}
		buildInfo.WithLabelValues(version.Fixedip(), version.Kubernetes()).Set(1)
		registerGauges()
	})
}

// Configured sets the hash of the settings that both programs share. Call it after Register.
func Configured(hash string) {
	configInfo.Reset()
	configInfo.WithLabelValues(hash).Set(1)
}

// ClaimEnded counts a claim, and observes its duration if it was written.
func ClaimEnded(r Result, took time.Duration) {
	claims.WithLabelValues(string(r)).Inc()
	if r == Written {
		claimDuration.Observe(took.Seconds())
	}
}

// MigrationEnded counts a migration.
func MigrationEnded(r Result) { migrations.WithLabelValues(string(r)).Inc() }

// PreFiltered counts a scheduling cycle that passed PreFilter. narrowed is true if PreFilter restricted the nodes.
func PreFiltered(narrowed bool) {
	prefilters.WithLabelValues(strconv.FormatBool(narrowed)).Inc()
}

// Requeued counts a pod that was put back into the scheduling queue.
func Requeued(c Cause) { requeues.WithLabelValues(string(c)).Inc() }

// PoolWrite counts a patch of the pool writer: the number of its requests if the patch was applied, or a conflict if the API
// server refused the patch because the CiliumNode had changed.
func PoolWrite(requests int, conflict bool) {
	if conflict {
		conflicts.Inc()
		return
	}
	batchSize.Observe(float64(requests))
}

// Sources provides the values of the gauges. It is read whenever metrics are served.
type Sources interface {
	// Size returns the size of the ledger.
	Size() ledger.Size
	// Synced reports for each informer whether it has seen every object that existed at the start.
	// Key: the plural name of the resource.
	Synced() map[string]bool
}

// sources is the argument of the last call of Register.
var sources atomic.Pointer[Sources]

// registerGauges adds the gauges to the metrics that the scheduler serves.
func registerGauges() {
	gauge := func(name, help string, labels map[string]string, value func(Sources) int) {
		legacyregistry.RawMustRegister(k8smetrics.NewGaugeFunc(&k8smetrics.GaugeOpts{
			Namespace: namespace, Name: name, Help: help, ConstLabels: labels, StabilityLevel: k8smetrics.ALPHA,
		}, func() float64 { return float64(value(*sources.Load())) }))
	}
	gauge("cache_nodes", "Nodes whose pool the scheduler knows.", nil, func(w Sources) int { return w.Size().Nodes })
	gauge("cache_entries", "Pool entries, of all nodes, that name a pod as their owner.", nil, func(w Sources) int { return w.Size().Entries })
	gauge("claims_in_flight", "Pods whose address is chosen and that are not bound yet, including pods that wait at Permit.", nil, func(w Sources) int { return w.Size().Claims })
	for _, c := range Awaited {
		reason := map[string]string{"reason": string(c)}
		gauge("unplaced_pods", "Pods that the plugin has refused and that wait in its queue, by the first reason that applies: quota (the quota of the namespace), slot (a slot of the workload), free_address, node (a node, its pool or its subnets), workload (the workload is not known yet, or a change of its annotations may help), owner (the reservation, or the pod that uses the address), annotation (only a change of the pod's annotations helps).",
			reason, func(Sources) int { return unplaced(c).Pods })
		gauge("oldest_unplaced_pod_seconds", "Age of the oldest pod that waits in the queue of the plugin, in seconds, by reason as in fixedip_unplaced_pods; 0 if there is none.",
			reason, func(Sources) int {
				if oldest := unplaced(c).Oldest; !oldest.IsZero() {
					return max(0, int(time.Since(oldest).Seconds()))
				}
				return 0
			})
	}
	for _, resource := range []string{"ciliumnodes", "fixedips"} {
		gauge("informer_synced", "1 if the informer has seen every object of the resource that existed at the start, else 0. The scheduler is not ready while this is 0.", map[string]string{"resource": resource}, func(w Sources) int {
			if w.Synced()[resource] {
				return 1
			}
			return 0
		})
	}
}
