package metrics

import (
	"strings"
	"testing"
	"time"

	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"

	"fixedip.io/fixedip/ipam/core/ledger"
)

type someWorld struct {
	size   ledger.Size
	synced map[string]bool
}

func (w someWorld) Size() ledger.Size       { return w.size }
func (w someWorld) Synced() map[string]bool { return w.synced }

// All metrics as they are served, after one of each thing that they count. The second registration
// is that of a second world, which the gauges then speak of; the counters go on.
func TestMetrics(t *testing.T) {
	Register(someWorld{size: ledger.Size{Nodes: 99}})
	Register(someWorld{
		size:   ledger.Size{Nodes: 3, Entries: 20, Claims: 2},
		synced: map[string]bool{"ciliumnodes": true, "fixedips": false},
	})
	for _, r := range []Result{Written, Standing, Taken, Gone, TimedOut, Failed} {
		ClaimEnded(r, 125*time.Millisecond)
	}
	ClaimEnded(Written, 250*time.Millisecond)
	for _, c := range []Cause{Owner, Node, Room, Annotation, Missed} {
		Woken(c)
	}
	Cycle(true)
	Cycle(true)
	Cycle(false)
	PoolWrites{}.Wrote(1)
	PoolWrites{}.Wrote(7)
	PoolWrites{}.Conflicted()

	want := `
# HELP fixedip_claim_batch_size [ALPHA] Claims that went together in one patch of a CiliumNode. Its count is that of the patches.
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
# HELP fixedip_claims_in_flight [ALPHA] Pods whose address is decided and that are not bound yet, those among them that wait at Permit.
# TYPE fixedip_claims_in_flight gauge
fixedip_claims_in_flight 2
# HELP fixedip_claims_total [ALPHA] Claims of addresses for pods that were about to be bound, by result: written, standing (it stood already, nothing was written), taken, gone (the CiliumNode), timeout, error.
# TYPE fixedip_claims_total counter
fixedip_claims_total{result="error"} 1
fixedip_claims_total{result="gone"} 1
fixedip_claims_total{result="standing"} 1
fixedip_claims_total{result="taken"} 1
fixedip_claims_total{result="timeout"} 1
fixedip_claims_total{result="written"} 2
# HELP fixedip_ledger_entries [ALPHA] Pool entries, of all nodes, that name a pod as their owner.
# TYPE fixedip_ledger_entries gauge
fixedip_ledger_entries 20
# HELP fixedip_ledger_nodes [ALPHA] Nodes whose pool the scheduler knows.
# TYPE fixedip_ledger_nodes gauge
fixedip_ledger_nodes 3
# HELP fixedip_pool_write_conflicts_total [ALPHA] Patches of CiliumNodes that were refused, since the pool had changed meanwhile, and were decided anew.
# TYPE fixedip_pool_write_conflicts_total counter
fixedip_pool_write_conflicts_total 1
# HELP fixedip_scheduling_cycles_total [ALPHA] Scheduling cycles of pods with a fixed address that passed PreFilter, by whether they were steered to the node that owns the address.
# TYPE fixedip_scheduling_cycles_total counter
fixedip_scheduling_cycles_total{steered="false"} 1
fixedip_scheduling_cycles_total{steered="true"} 2
# HELP fixedip_wakeups_total [ALPHA] Pods put back into the queue after the plugin had refused them, by cause: owner (their reservation), node (the owner node), room, annotation, failover (their node could not take them, and others are tried), missed (a change while they were being refused).
# TYPE fixedip_wakeups_total counter
fixedip_wakeups_total{cause="annotation"} 1
fixedip_wakeups_total{cause="missed"} 1
fixedip_wakeups_total{cause="node"} 1
fixedip_wakeups_total{cause="owner"} 1
fixedip_wakeups_total{cause="room"} 1
# HELP fixedip_watch_synced [ALPHA] 1 when all objects of the resource that stood at the start have been seen, else 0. The scheduler is not ready before.
# TYPE fixedip_watch_synced gauge
fixedip_watch_synced{resource="ciliumnodes"} 1
fixedip_watch_synced{resource="fixedips"} 0
`
	err := testutil.GatherAndCompare(legacyregistry.DefaultGatherer, strings.NewReader(want),
		"fixedip_claim_batch_size", "fixedip_claims_in_flight", "fixedip_claims_total", "fixedip_ledger_entries", "fixedip_ledger_nodes",
		"fixedip_pool_write_conflicts_total", "fixedip_scheduling_cycles_total", "fixedip_wakeups_total", "fixedip_watch_synced")
	if err != nil {
		t.Error(err)
	}
	if problems, err := testutil.NewPromLinter(strings.NewReader(want)).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("names and help texts: %v, %v", problems, err)
	}

	duration, err := testutil.GetHistogramVecFromGatherer(legacyregistry.DefaultGatherer, "fixedip_claim_duration_seconds", nil)
	if err != nil {
		t.Fatal(err)
	}
	if n, sum := duration.GetAggregatedSampleCount(), duration.GetAggregatedSampleSum(); n != 2 || sum != 0.375 {
		t.Errorf("durations: %d, %v s together; want those of the two claims that were written, 0.375 s", n, sum)
	}
}
