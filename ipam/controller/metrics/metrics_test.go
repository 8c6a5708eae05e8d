// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/util/sets"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/nodeutil"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reservation"
	"fixedip.io/fixedip/ipam/core/subnetplan"
	"fixedip.io/fixedip/test/gen"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func node(name, cidr string, entries map[netip.Addr]pool.Entry, used ...string) pool.NodePool {
	return gen.NodePool(name, cidr, nil, gen.UsedBy("", used...), func(n *pool.NodePool) { n.Entries = entries })
}

// TestMetrics checks the text of all metrics after one event of each kind. It calls Register twice: the
// second call replaces the sources of the gauges.
func TestMetrics(t *testing.T) {
	Register(Sources{Ledger: ledger.New(), FixedIPs: func() map[reservation.State]int { return nil }, Subnets: func() (int, []netip.Prefix) { return 0, nil }, Synced: func() map[string]bool { return nil }, Waiting: func() []WaitingPods { return nil }})
	l := ledger.New()
	l.SetNode(node("node-1", "10.0.0.0/29", map[netip.Addr]pool.Entry{
		addr("10.0.0.1"): {}, addr("10.0.0.2"): {}, addr("10.0.0.3"): pool.ForOwner("router"),
		addr("10.0.0.6"): pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql"), addr("10.0.0.5"): pool.CooldownEntry("", time.Unix(1, 0)),
	}, "10.0.0.2"))
	l.SetNode(node("node-2", "10.0.1.0/29", map[netip.Addr]pool.Entry{
		addr("10.0.1.6"): pool.OwnedEntry("db", "mysql-1", "StatefulSet", "mysql"), addr("10.0.1.5"): pool.MovedEntry("node-1", "db/mysql-2"),
	}))
	l.SetNode(node("node-3", "10.0.1.0/28", nil))
	l.SetNode(pool.NodePool{Name: "node-4"})
	for _, pod := range []string{"db/mysql-0", "db/redis-0", "db/redis-1"} {
		l.SetReservation(ledger.Reservation{Record: pod, Owner: pod})
	}
	Register(Sources{
		Ledger:       l,
		ClusterPools: []address.ClusterPool{{CIDR: netip.MustParsePrefix("10.0.0.0/23"), MaskSize: 29}},
		FixedIPs: func() map[reservation.State]int {
			return map[reservation.State]int{reservation.InUse: 1, reservation.Reserved: 1, reservation.Unseen: 1}
		},
		Subnets:  func() (int, []netip.Prefix) { return 1, []netip.Prefix{netip.MustParsePrefix("10.0.0.96/29")} },
		Synced:   func() map[string]bool { return map[string]bool{"pods": true, "fixedips": false} },
		Barriers: func() (pending, overdue int) { return 3, 1 },
		Strict:   func() sets.Set[string] { return sets.New("node-3") },
		Waiting:  func() []WaitingPods { return []WaitingPods{{"node-1", nodeutil.Cordoned, 2}} },
	})
	Configured("0123")
	Configured("4567")
	Released(Deleted, 2)
	Adoptions.Inc()
	SubnetsAssigned(subnetplan.ByNewNode)
	Reconciled("record", time.Unix(1795000000, 5))
	PoolWrite(3, false)
	PoolWrite(1, true)
	Mismatches.WithLabelValues("WrongAddress").Inc()
	Restarts.WithLabelValues("evicted").Inc()
	Conflicts.WithLabelValues("pods").Set(1)
	EndpointsRemoved.WithLabelValues("Stale").Inc()
	EndpointOwnerRefFixes.Inc()
	EndpointsMissing.Inc()
	EndpointsMissingNow.Set(7)
	EndpointEvictionsPaused.Set(1)
	BarrierAnswered(3 * time.Second)

	want := `
# HELP fixedip_adoptions_total Pods whose running address became their fixed address (adoption).
# TYPE fixedip_adoptions_total counter
fixedip_adoptions_total 1
# HELP fixedip_agent_barrier_duration_seconds Time from the oldest open barrier request for a node, or from the previous answer if that is later, to the answer of its Cilium agent.
# TYPE fixedip_agent_barrier_duration_seconds histogram
fixedip_agent_barrier_duration_seconds_bucket{le="0.25"} 0
fixedip_agent_barrier_duration_seconds_bucket{le="0.5"} 0
fixedip_agent_barrier_duration_seconds_bucket{le="1"} 0
fixedip_agent_barrier_duration_seconds_bucket{le="2"} 0
fixedip_agent_barrier_duration_seconds_bucket{le="4"} 1
fixedip_agent_barrier_duration_seconds_bucket{le="8"} 1
fixedip_agent_barrier_duration_seconds_bucket{le="16"} 1
fixedip_agent_barrier_duration_seconds_bucket{le="32"} 1
fixedip_agent_barrier_duration_seconds_bucket{le="64"} 1
fixedip_agent_barrier_duration_seconds_bucket{le="128"} 1
fixedip_agent_barrier_duration_seconds_bucket{le="256"} 1
fixedip_agent_barrier_duration_seconds_bucket{le="512"} 1
fixedip_agent_barrier_duration_seconds_bucket{le="+Inf"} 1
fixedip_agent_barrier_duration_seconds_sum 3
fixedip_agent_barrier_duration_seconds_count 1
# HELP fixedip_agent_barriers_overdue Nodes with barrier requests that the Cilium agent has not answered for more than two minutes. Cooldowns on these nodes do not end, and no pod takes over their addresses.
# TYPE fixedip_agent_barriers_overdue gauge
fixedip_agent_barriers_overdue 1
# HELP fixedip_agent_barriers_pending Nodes with barrier requests that the Cilium agent has not answered yet.
# TYPE fixedip_agent_barriers_pending gauge
fixedip_agent_barriers_pending 3
# HELP fixedip_ciliumendpoint_evictions_paused 1 while so many pods have no CiliumEndpoint that evictions of such pods are paused.
# TYPE fixedip_ciliumendpoint_evictions_paused gauge
fixedip_ciliumendpoint_evictions_paused 1
# HELP fixedip_build_info 1 for the version of fixedip and that of the Kubernetes libraries.
# TYPE fixedip_build_info gauge
fixedip_build_info{kubernetes="v0.0.0-master+$Format:%H$",version="unknown"} 1
# HELP fixedip_ciliumendpoints_missing Running pods whose CiliumEndpoint has been missing for longer than --cep-grace-period.
# TYPE fixedip_ciliumendpoints_missing gauge
fixedip_ciliumendpoints_missing 7
# HELP fixedip_ciliumendpoints_missing_total Running pods whose agent did not create a CiliumEndpoint in time.
# TYPE fixedip_ciliumendpoints_missing_total counter
fixedip_ciliumendpoints_missing_total 1
# HELP fixedip_ciliumendpoints_removed_total CiliumEndpoints that were deleted, or whose finalizers were removed, by cause.
# TYPE fixedip_ciliumendpoints_removed_total counter
fixedip_ciliumendpoints_removed_total{cause="Stale"} 1
# HELP fixedip_ciliumendpoint_ownerref_fixes_total Owner references of CiliumEndpoints that named a previous pod and were corrected.
# TYPE fixedip_ciliumendpoint_ownerref_fixes_total counter
fixedip_ciliumendpoint_ownerref_fixes_total 1
# HELP fixedip_cluster_pool_free_subnets Subnets of a cluster pool that are free for new nodes.
# TYPE fixedip_cluster_pool_free_subnets gauge
fixedip_cluster_pool_free_subnets{cidr="10.0.0.0/23"} 60
# HELP fixedip_config_info 1 for the hash of the settings that both programs share. Programs with different hashes have different settings.
# TYPE fixedip_config_info gauge
fixedip_config_info{hash="4567"} 1
# HELP fixedip_conflicting_addresses Addresses in conflict, by kind: pods (more than one pod runs with it), fixedips (more than one FixedIP reserves it), pools (more than one pool offers it), wrong_pod (a pod runs with an address that is reserved for another pod).
# TYPE fixedip_conflicting_addresses gauge
fixedip_conflicting_addresses{kind="pods"} 1
# HELP fixedip_overlapping_subnet_nodes Nodes whose subnets overlap subnets of another node. No address in these subnets is claimed.
# TYPE fixedip_overlapping_subnet_nodes gauge
fixedip_overlapping_subnet_nodes 2
# HELP fixedip_last_reconcile_timestamp_seconds Time of the last successful reconciliation, by controller. Every FixedIP is reconciled at least once per --resync-period.
# TYPE fixedip_last_reconcile_timestamp_seconds gauge
fixedip_last_reconcile_timestamp_seconds{controller="record"} 1.795e+09
# HELP fixedip_mismatches_total Mismatches found between running pods and their FixedIPs, and missing CiliumEndpoints of pods with a FixedIP, by reason.
# TYPE fixedip_mismatches_total counter
fixedip_mismatches_total{reason="WrongAddress"} 1
# HELP fixedip_nodes_without_subnet Nodes without a subnet in a family that has cluster pools. If it stays above 0, the events of these Nodes give the reason, usually that the cluster pools are exhausted.
# TYPE fixedip_nodes_without_subnet gauge
fixedip_nodes_without_subnet{family="IPv4"} 1
# HELP fixedip_orphaned_subnets Orphaned subnets with reserved addresses.
# TYPE fixedip_orphaned_subnets gauge
fixedip_orphaned_subnets 1
# HELP fixedip_pool_addresses Entries in the pool of a node, by state: free and used (dynamic entries, by the last report of the agent; a strict node has no series free), fixed (owned by a pod; on a strict node also by a pod without a fixed address), cooldown (released or withdrawn, and offered to no pod), node (owned by the node itself), other.
# TYPE fixedip_pool_addresses gauge
fixedip_pool_addresses{family="IPv4",node="node-1",state="fixed"} 1
fixedip_pool_addresses{family="IPv4",node="node-1",state="free"} 1
fixedip_pool_addresses{family="IPv4",node="node-1",state="node"} 1
fixedip_pool_addresses{family="IPv4",node="node-1",state="cooldown"} 1
fixedip_pool_addresses{family="IPv4",node="node-1",state="used"} 1
fixedip_pool_addresses{family="IPv4",node="node-2",state="fixed"} 1
fixedip_pool_addresses{family="IPv4",node="node-2",state="free"} 0
fixedip_pool_addresses{family="IPv4",node="node-2",state="other"} 1
fixedip_pool_addresses{family="IPv4",node="node-2",state="used"} 0
fixedip_pool_addresses{family="IPv4",node="node-3",state="fixed"} 0
fixedip_pool_addresses{family="IPv4",node="node-3",state="used"} 0
# HELP fixedip_pool_write_requests Number of requests in one patch of a CiliumNode by the controller.
# TYPE fixedip_pool_write_requests histogram
fixedip_pool_write_requests_bucket{le="1"} 0
fixedip_pool_write_requests_bucket{le="2"} 0
fixedip_pool_write_requests_bucket{le="4"} 1
fixedip_pool_write_requests_bucket{le="8"} 1
fixedip_pool_write_requests_bucket{le="16"} 1
fixedip_pool_write_requests_bucket{le="32"} 1
fixedip_pool_write_requests_bucket{le="64"} 1
fixedip_pool_write_requests_bucket{le="128"} 1
fixedip_pool_write_requests_bucket{le="256"} 1
fixedip_pool_write_requests_bucket{le="+Inf"} 1
fixedip_pool_write_requests_sum 3
fixedip_pool_write_requests_count 1
# HELP fixedip_pool_writes_total Patches of CiliumNodes by the controller, except those of release handshakes and of assigned subnets, by result: applied, or conflict (the CiliumNode had changed, and the patch wrote nothing).
# TYPE fixedip_pool_writes_total counter
fixedip_pool_writes_total{result="applied"} 1
fixedip_pool_writes_total{result="conflict"} 1
# HELP fixedip_releases_total Released addresses, by cause: fixedip-deleted, superseded (for example a second claim, a claim that the FixedIP does not name, or the target of a move that did not take place), unrecorded (the claim had no FixedIP, for example because the pod and its workload were deleted first).
# TYPE fixedip_releases_total counter
fixedip_releases_total{cause="fixedip-deleted"} 2
fixedip_releases_total{cause="superseded"} 0
fixedip_releases_total{cause="unrecorded"} 0
# HELP fixedip_reservations FixedIPs by state: Reserved, InUse, Releasing, or None if the FixedIP has not been reconciled yet.
# TYPE fixedip_reservations gauge
fixedip_reservations{state="InUse"} 1
fixedip_reservations{state="None"} 1
fixedip_reservations{state="Releasing"} 0
fixedip_reservations{state="Reserved"} 1
# HELP fixedip_restarts_total Evictions of pods because of a wrong address, a lost pool entry or a missing CiliumEndpoint, by result: evicted, blocked (the API server refused the eviction, usually because of a PodDisruptionBudget), deferred (a limit for concurrent restarts was reached, or another pod of the workload was not ready).
# TYPE fixedip_restarts_total counter
fixedip_restarts_total{result="evicted"} 1
# HELP fixedip_subnet_assignments_total Assignments of subnets to nodes, by origin: cluster_pool, node_spec (Node.spec.podCIDRs), restored (the node had them before), new_node (a node without subnets inherited them), existing_node (a node with subnets inherited others).
# TYPE fixedip_subnet_assignments_total counter
fixedip_subnet_assignments_total{origin="existing_node"} 0
fixedip_subnet_assignments_total{origin="node_spec"} 0
fixedip_subnet_assignments_total{origin="cluster_pool"} 0
fixedip_subnet_assignments_total{origin="new_node"} 1
fixedip_subnet_assignments_total{origin="restored"} 0
# HELP fixedip_subnet_free_addresses Addresses in the subnets of a node that a new claim can take.
# TYPE fixedip_subnet_free_addresses gauge
fixedip_subnet_free_addresses{family="IPv4",node="node-1"} 1
fixedip_subnet_free_addresses{family="IPv4",node="node-2"} 0
fixedip_subnet_free_addresses{family="IPv4",node="node-3"} 0
# HELP fixedip_waiting_pods Unschedulable pods whose address belongs to a node, by node and state of the node: ready, cordoned, not ready, gone.
# TYPE fixedip_waiting_pods gauge
fixedip_waiting_pods{node="node-1",state="cordoned"} 2
# HELP fixedip_claims_without_fixedip Pods with an owned pool entry and no FixedIP: the pod is not bound yet, the FixedIP was refused, or the entry was written by hand. Pods without a fixed address on strict nodes do not count.
# TYPE fixedip_claims_without_fixedip gauge
fixedip_claims_without_fixedip 1
# HELP fixedip_informer_synced 1 if the informer has seen every object of the resource that existed at the start, else 0. The controller is not ready until all are 1.
# TYPE fixedip_informer_synced gauge
fixedip_informer_synced{resource="fixedips"} 0
fixedip_informer_synced{resource="pods"} 1
`
	var names []string
	for name := range own(t) {
		names = append(names, name)
	}
	if err := testutil.GatherAndCompare(ctrlmetrics.Registry, strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.GatherAndLint(ctrlmetrics.Registry, names...); err != nil || len(problems) > 0 {
		t.Errorf("lint of names and help texts: got problems %v and error %v, want none", problems, err)
	}
}
