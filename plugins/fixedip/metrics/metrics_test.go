// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strings"
	"testing"
	"time"

	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"

	"fixedip.io/fixedip/ipam/core/ledger"
)

// fakeSources is a Sources with fixed values.
type fakeSources struct {
	size   ledger.Size
	synced map[string]bool
}

func (w fakeSources) Size() ledger.Size       { return w.size }
func (w fakeSources) Synced() map[string]bool { return w.synced }

// TestMetrics checks that the scheduler serves the counted values, and the gauges of the Sources that were registered last.
func TestMetrics(t *testing.T) {
	Register(fakeSources{size: ledger.Size{Nodes: 99}})
	Register(fakeSources{
		size:   ledger.Size{Nodes: 3, Entries: 20, Claims: 2},
		synced: map[string]bool{"ciliumnodes": true, "fixedips": false},
	})
	created := func(ago time.Duration, pods int) Unplaced { return Unplaced{Pods: pods, Oldest: time.Now().Add(-ago)} }
	AddQueue(func() map[Cause]Unplaced {
		return map[Cause]Unplaced{Owner: created(time.Minute, 2), Annotation: created(time.Second, 1)}
	})
	AddQueue(func() map[Cause]Unplaced { return map[Cause]Unplaced{Owner: created(time.Hour, 1)} })
	for _, r := range []Result{Written, Existing, Conflict, NodeGone, TimedOut, Failed} {
		ClaimEnded(r, 125*time.Millisecond)
	}
	ClaimEnded(Written, 250*time.Millisecond)
	for _, c := range []Cause{Owner, Node, FreeAddress, Annotation, Missed} {
		Requeued(c)
	}
	Configured("0123")
	Configured("4567")
	PreFiltered(true)
	PreFiltered(true)
	PreFiltered(false)
	PoolWrite(1, false)
	PoolWrite(7, false)
	PoolWrite(1, true)
	MigrationEnded(Migrated)

	want := `
# HELP fixedip_cache_entries [ALPHA] Pool entries, of all nodes, that name a pod as their owner.
# TYPE fixedip_cache_entries gauge
fixedip_cache_entries 20
# HELP fixedip_cache_nodes [ALPHA] Nodes whose pool the scheduler knows.
# TYPE fixedip_cache_nodes gauge
fixedip_cache_nodes 3
# HELP fixedip_claim_batch_size [ALPHA] Number of claims, or of steps of migrations, in one patch of a CiliumNode. The count is the number of patches.
# TYPE fixedip_claim_batch_size histogram
fixedip_claim_batch_size_bucket{le="1"} 1
fixedip_claim_batch_size_bucket{le="2"} 1
fixedip_claim_batch_size_bucket{le="4"} 1
fixedip_claim_batch_size_bucket{le="8"} 2
fixedip_claim_batch_size_bucket{le="16"} 2
fixedip_claim_batch_size_bucket{le="32"} 2
fixedip_claim_batch_size_bucket{le="64"} 2
fixedip_claim_batch_size_bucket{le="128"} 2
fixedip_claim_batch_size_bucket{le="256"} 2
fixedip_claim_batch_size_bucket{le="+Inf"} 2
fixedip_claim_batch_size_sum 8
fixedip_claim_batch_size_count 2
# HELP fixedip_claims_in_flight [ALPHA] Pods whose address is chosen and that are not bound yet, including pods that wait at Permit.
# TYPE fixedip_claims_in_flight gauge
fixedip_claims_in_flight 2
# HELP fixedip_claims_total [ALPHA] Claims of addresses for pods about to be bound, by result: written, existing (the pool already had the entry, nothing was written), conflict (the address is not available), node_gone (the CiliumNode does not exist), timeout, error.
# TYPE fixedip_claims_total counter
fixedip_claims_total{result="conflict"} 1
fixedip_claims_total{result="error"} 1
fixedip_claims_total{result="existing"} 1
fixedip_claims_total{result="node_gone"} 1
fixedip_claims_total{result="timeout"} 1
fixedip_claims_total{result="written"} 2
# HELP fixedip_config_info [ALPHA] 1 for the hash of the settings that both programs share. Programs with different hashes have different settings.
# TYPE fixedip_config_info gauge
fixedip_config_info{hash="4567"} 1
# HELP fixedip_informer_synced [ALPHA] 1 if the informer has seen every object of the resource that existed at the start, else 0. The scheduler is not ready while this is 0.
# TYPE fixedip_informer_synced gauge
fixedip_informer_synced{resource="ciliumnodes"} 1
fixedip_informer_synced{resource="fixedips"} 0
# HELP fixedip_migrations_total [ALPHA] Migrations of addresses to another node, by result: migrated, old_pod_running (the previous pod may still run), conflict (the address is not available, or a pool does not have the entry that the migration requires), node_gone (a CiliumNode does not exist), timeout, error.
# TYPE fixedip_migrations_total counter
fixedip_migrations_total{result="conflict"} 0
fixedip_migrations_total{result="error"} 0
fixedip_migrations_total{result="migrated"} 1
fixedip_migrations_total{result="node_gone"} 0
fixedip_migrations_total{result="old_pod_running"} 0
fixedip_migrations_total{result="timeout"} 0
# HELP fixedip_pool_write_conflicts_total [ALPHA] Patches of CiliumNodes that were refused because the CiliumNode had changed, and were decided again.
# TYPE fixedip_pool_write_conflicts_total counter
fixedip_pool_write_conflicts_total 1
# HELP fixedip_prefilter_total [ALPHA] Scheduling cycles of pods with a fixed address that passed PreFilter, by whether PreFilter restricted the nodes.
# TYPE fixedip_prefilter_total counter
fixedip_prefilter_total{narrowed="false"} 1
fixedip_prefilter_total{narrowed="true"} 2
# HELP fixedip_requeues_total [ALPHA] Waiting pods that were put back into the scheduling queue, by reason: owner (the reservation changed, or the pod that uses the address ended), node (a node that the pod waits for, or its pool, changed; a node that the pod may use was created, uncordoned or relabelled; or a node may be able to run a pod whose subnet is orphaned), free_address (an address became free), slot (the free slots of the workload changed), workload (the workload became known, or its annotations changed), quota (the namespace may have more FixedIPs), annotation, failover (other nodes are tried), missed (a change while the pod was being refused).
# TYPE fixedip_requeues_total counter
fixedip_requeues_total{reason="annotation"} 1
fixedip_requeues_total{reason="missed"} 1
fixedip_requeues_total{reason="node"} 1
fixedip_requeues_total{reason="owner"} 1
fixedip_requeues_total{reason="free_address"} 1
fixedip_requeues_total{reason="failover"} 0
fixedip_requeues_total{reason="quota"} 0
fixedip_requeues_total{reason="slot"} 0
fixedip_requeues_total{reason="workload"} 0
# HELP fixedip_unplaced_pods [ALPHA] Pods that the plugin has refused and that wait in its queue, by the first reason that applies: quota (the quota of the namespace), slot (a slot of the workload), free_address, node (a node, its pool or its subnets), workload (the workload is not known yet, or a change of its annotations may help), owner (the reservation, or the pod that uses the address), annotation (only a change of the pod's annotations helps).
# TYPE fixedip_unplaced_pods gauge
fixedip_unplaced_pods{reason="annotation"} 1
fixedip_unplaced_pods{reason="free_address"} 0
fixedip_unplaced_pods{reason="node"} 0
fixedip_unplaced_pods{reason="owner"} 3
fixedip_unplaced_pods{reason="quota"} 0
fixedip_unplaced_pods{reason="slot"} 0
fixedip_unplaced_pods{reason="workload"} 0
`
	err := testutil.GatherAndCompare(legacyregistry.DefaultGatherer, strings.NewReader(want),
		"fixedip_claim_batch_size", "fixedip_claims_in_flight", "fixedip_claims_total", "fixedip_config_info", "fixedip_cache_entries", "fixedip_cache_nodes",
		"fixedip_migrations_total", "fixedip_pool_write_conflicts_total", "fixedip_prefilter_total", "fixedip_requeues_total", "fixedip_informer_synced", "fixedip_unplaced_pods")
	if err != nil {
		t.Error(err)
	}
	if problems, err := testutil.NewPromLinter(strings.NewReader(want)).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("linting the metrics: problems %v, error %v; want none", problems, err)
	}

	duration, err := testutil.GetHistogramVecFromGatherer(legacyregistry.DefaultGatherer, "fixedip_claim_duration_seconds", nil)
	if err != nil {
		t.Fatal(err)
	}
	if n, sum := duration.GetAggregatedSampleCount(), duration.GetAggregatedSampleSum(); n != 2 || sum != 0.375 {
		t.Errorf("claim durations: got %d samples with a sum of %v s, want 2 samples with a sum of 0.375 s", n, sum)
	}

	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	ages := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "fixedip_oldest_unplaced_pod_seconds" {
				ages[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
			}
		}
	}
	if got := ages["owner"]; got < 3600 || got > 3660 {
		t.Errorf("age of the oldest pod with reason owner: got %v s, want 3600 to 3660", got)
	}
	if got := ages["slot"]; got != 0 {
		t.Errorf("age of the oldest pod with reason slot: got %v s, want 0", got)
	}
}
