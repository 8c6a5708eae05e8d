package metrics

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/subnetplan"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func node(name, cidr string, entries map[netip.Addr]pool.Entry, used ...string) pool.Node {
	n := pool.Node{Name: name, PodCIDRs: []string{cidr}, Subnets: []netip.Prefix{netip.MustParsePrefix(cidr)}, Entries: entries, Used: map[netip.Addr]string{}}
	for _, u := range used {
		n.Used[addr(u)] = ""
	}
	return n
}

// All metrics as they are served, after one of each thing that they count. The second registration
// is that of a second world, which the gauges then speak of.
func TestMetrics(t *testing.T) {
	Register(World{Ledger: ledger.New(), Phases: func() map[v1alpha1.Phase]int { return nil }, Subnets: func() (int, []netip.Prefix) { return 0, nil }, Synced: func() map[string]bool { return nil }})
	l := ledger.New()
	l.SetNode(node("node-1", "10.0.0.0/29", map[netip.Addr]pool.Entry{
		addr("10.0.0.1"): {}, addr("10.0.0.2"): {}, addr("10.0.0.3"): {Owner: "router"},
		addr("10.0.0.6"): pool.Owned("db", "mysql-0", "StatefulSet", "mysql"), addr("10.0.0.5"): pool.Released(time.Unix(1, 0)),
	}, "10.0.0.2"))
	l.SetNode(node("node-2", "10.0.1.0/29", map[netip.Addr]pool.Entry{
		addr("10.0.1.6"): pool.Owned("db", "mysql-1", "StatefulSet", "mysql"), addr("10.0.1.5"): pool.Away("node-1", "db/mysql-2"),
	}))
	l.SetNode(node("node-3", "10.0.1.0/28", nil))
	l.SetNode(pool.Node{Name: "node-4"})
	for _, pod := range []string{"db/mysql-0", "db/redis-0", "db/redis-1"} {
		l.SetRecord(ledger.Keeping{Record: pod, Owner: pod})
	}
	Register(World{
		Ledger:       l,
		ClusterPools: []address.ClusterPool{{CIDR: netip.MustParsePrefix("10.0.0.0/23"), MaskSize: 29}},
		Phases: func() map[v1alpha1.Phase]int {
			return map[v1alpha1.Phase]int{v1alpha1.PhaseInUse: 1, v1alpha1.PhaseReserved: 1, "": 1}
		},
		Subnets: func() (int, []netip.Prefix) { return 1, []netip.Prefix{netip.MustParsePrefix("10.0.0.96/29")} },
		Synced:  func() map[string]bool { return map[string]bool{"pods": true, "fixedips": false} },
	})
	Released(Deleted, 2)
	Adopted()
	SubnetsAssigned(subnetplan.Inherited)
	Reconciled("record", time.Unix(1795000000, 5))
	PoolWrites{}.Wrote(3)
	PoolWrites{}.Conflicted()
	Mismatch("WrongAddress")
	Restart("evicted")
	Conflicting(map[string]int{"pods": 1})
	EndpointRemoved("Stale")
	EndpointReowned()
	EndpointMissing()

	want := `
# HELP fixedip_adoptions_total Pods of other schedulers that were given the address that they ran with.
# TYPE fixedip_adoptions_total counter
fixedip_adoptions_total 1
# HELP fixedip_ciliumendpoints_missing_total Running pods without a CiliumEndpoint whose agent did not make one in time.
# TYPE fixedip_ciliumendpoints_missing_total counter
fixedip_ciliumendpoints_missing_total 1
# HELP fixedip_ciliumendpoints_removed_total CiliumEndpoints that were deleted, or let go of where finalizers held them, by cause.
# TYPE fixedip_ciliumendpoints_removed_total counter
fixedip_ciliumendpoints_removed_total{cause="Stale"} 1
# HELP fixedip_ciliumendpoints_reowned_total CiliumEndpoints of running pods whose owner reference named a former pod and was put right.
# TYPE fixedip_ciliumendpoints_reowned_total counter
fixedip_ciliumendpoints_reowned_total 1
# HELP fixedip_cluster_pool_free_subnets Subnets that a cluster pool has left for nodes.
# TYPE fixedip_cluster_pool_free_subnets gauge
fixedip_cluster_pool_free_subnets{cidr="10.0.0.0/23"} 60
# HELP fixedip_conflicting_addresses Addresses that more than one has, holds or offers, by kind: pods, fixedips, pools, stranger (a pod runs with what is kept for another).
# TYPE fixedip_conflicting_addresses gauge
fixedip_conflicting_addresses{kind="pods"} 1
# HELP fixedip_disputed_nodes Nodes whose subnets overlap those of another node. Nothing in them is handed out.
# TYPE fixedip_disputed_nodes gauge
fixedip_disputed_nodes 2
# HELP fixedip_last_reconcile_timestamp_seconds When the controller named was last done with an object, without an error. Every reservation is looked at again within five minutes.
# TYPE fixedip_last_reconcile_timestamp_seconds gauge
fixedip_last_reconcile_timestamp_seconds{controller="record"} 1.795e+09
# HELP fixedip_mismatches_total Pods that were found not to run as is kept for them, by reason; Adopted are first placements whose address was kept.
# TYPE fixedip_mismatches_total counter
fixedip_mismatches_total{reason="WrongAddress"} 1
# HELP fixedip_nodes_without_subnet Nodes that have no subnet in a family that the cluster has pools for. Where it stays above 0 the pools are used up.
# TYPE fixedip_nodes_without_subnet gauge
fixedip_nodes_without_subnet{family="IPv4"} 1
# HELP fixedip_orphaned_subnets Subnets whose node is gone and in which addresses are kept.
# TYPE fixedip_orphaned_subnets gauge
fixedip_orphaned_subnets 1
# HELP fixedip_pool_addresses Entries in the pool of a node: free and used (of any pod, by what its agent last said), fixed (name a pod), resting (released, cooling down), node (the node's own), other.
# TYPE fixedip_pool_addresses gauge
fixedip_pool_addresses{family="IPv4",node="node-1",state="fixed"} 1
fixedip_pool_addresses{family="IPv4",node="node-1",state="free"} 1
fixedip_pool_addresses{family="IPv4",node="node-1",state="node"} 1
fixedip_pool_addresses{family="IPv4",node="node-1",state="resting"} 1
fixedip_pool_addresses{family="IPv4",node="node-1",state="used"} 1
fixedip_pool_addresses{family="IPv4",node="node-2",state="fixed"} 1
fixedip_pool_addresses{family="IPv4",node="node-2",state="free"} 0
fixedip_pool_addresses{family="IPv4",node="node-2",state="other"} 1
fixedip_pool_addresses{family="IPv4",node="node-2",state="used"} 0
fixedip_pool_addresses{family="IPv4",node="node-3",state="fixed"} 0
fixedip_pool_addresses{family="IPv4",node="node-3",state="free"} 0
fixedip_pool_addresses{family="IPv4",node="node-3",state="used"} 0
# HELP fixedip_pool_write_requests Requests that one patch of a CiliumNode by the controller fulfilled.
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
# HELP fixedip_pool_writes_total Patches of CiliumNodes by the controller, by result: applied, or conflict (the pool had changed meanwhile, and it was decided anew).
# TYPE fixedip_pool_writes_total counter
fixedip_pool_writes_total{result="applied"} 1
fixedip_pool_writes_total{result="conflict"} 1
# HELP fixedip_releases_total Addresses that were taken from an identity, by cause: record-deleted, superseded (a second claim, or one beside the record), unrecorded (pod and workload gone before there was a record).
# TYPE fixedip_releases_total counter
fixedip_releases_total{cause="record-deleted"} 2
fixedip_releases_total{cause="superseded"} 0
fixedip_releases_total{cause="unrecorded"} 0
# HELP fixedip_reservations FixedIPs by phase; None is one that was not looked at yet.
# TYPE fixedip_reservations gauge
fixedip_reservations{phase="InUse"} 1
fixedip_reservations{phase="None"} 1
fixedip_reservations{phase="Releasing"} 0
fixedip_reservations{phase="Reserved"} 1
# HELP fixedip_restarts_total Restarts of pods because of a mismatch, by result: evicted, blocked (a PodDisruptionBudget refused it), deferred (as many as allowed were restarting already).
# TYPE fixedip_restarts_total counter
fixedip_restarts_total{result="evicted"} 1
# HELP fixedip_subnet_assignments_total Times that a node was given subnets, by origin: carved (from the cluster pools), brought (by the node itself), returned (to the node that had them before), inherited (by a node that joined), adopted (by one that had others).
# TYPE fixedip_subnet_assignments_total counter
fixedip_subnet_assignments_total{origin="adopted"} 0
fixedip_subnet_assignments_total{origin="brought"} 0
fixedip_subnet_assignments_total{origin="carved"} 0
fixedip_subnet_assignments_total{origin="inherited"} 1
fixedip_subnet_assignments_total{origin="returned"} 0
# HELP fixedip_subnet_free_addresses Addresses of a node's subnets that a new reservation can choose from.
# TYPE fixedip_subnet_free_addresses gauge
fixedip_subnet_free_addresses{family="IPv4",node="node-1"} 2
fixedip_subnet_free_addresses{family="IPv4",node="node-2"} 0
fixedip_subnet_free_addresses{family="IPv4",node="node-3"} 0
# HELP fixedip_unrecorded_claims Pods that a pool gives an address to and that have no FixedIP: claimed a moment ago, or written by hand.
# TYPE fixedip_unrecorded_claims gauge
fixedip_unrecorded_claims 1
# HELP fixedip_watch_synced 1 when all objects of the resource that stood at the start have been seen, else 0. The controller is not ready before.
# TYPE fixedip_watch_synced gauge
fixedip_watch_synced{resource="fixedips"} 0
fixedip_watch_synced{resource="pods"} 1
`
	var names []string
	for name := range own(t) {
		names = append(names, name)
	}
	if err := testutil.GatherAndCompare(ctrlmetrics.Registry, strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.GatherAndLint(ctrlmetrics.Registry, names...); err != nil || len(problems) > 0 {
		t.Errorf("names and help texts: %v, %v", problems, err)
	}
}
