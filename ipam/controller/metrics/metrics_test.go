// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/util/sets"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/conformance"
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
	now := time.Unix(1795000000, 0)
	Register(Sources{Ledger: ledger.New(), Now: func() time.Time { return now }})
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
		Now:          func() time.Time { return now },
		PerNode:      PerNodeAuto,
		MinFree:      8,
		ResyncPeriod: 5 * time.Minute,
		ClusterPools: []address.ClusterPool{{CIDR: netip.MustParsePrefix("10.0.0.0/23"), MaskSize: 29}},
		FixedIPs: func() map[reservation.State]int {
			return map[reservation.State]int{reservation.InUse: 1, reservation.Reserved: 1, reservation.Unseen: 1}
		},
		Subnets:  func() (int, []netip.Prefix) { return 1, []netip.Prefix{netip.MustParsePrefix("10.0.0.96/29")} },
		Synced:   func() map[string]bool { return map[string]bool{"pods": true, "fixedips": false} },
		Barriers: func() (pending, overdue int) { return 3, 1 },
		Strict:   func() sets.Set[string] { return sets.New("node-3") },
		Waiting: func() []WaitingPods {
			return []WaitingPods{{"node-1", nodeutil.Cordoned, 2, now.Add(-time.Minute)}, {"node-9", nodeutil.Cordoned, 1, now.Add(-2 * time.Minute)}}
		},
		Mismatched: func() (map[string]int, time.Time) {
			return map[string]int{conformance.ReasonWrongAddress: 3, conformance.ReasonRestartBlocked: 1}, now.Add(-3 * time.Minute)
		},
		OldestRelease: func() time.Time { return now.Add(-time.Hour) },
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
	AddressSeen(2 * time.Second)

	want, err := os.ReadFile(filepath.Join("testdata", "metrics.txt"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for name := range own(t) {
		names = append(names, name)
	}
	if err := testutil.GatherAndCompare(ctrlmetrics.Registry, bytes.NewReader(want), names...); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.GatherAndLint(ctrlmetrics.Registry, names...); err != nil || len(problems) > 0 {
		t.Errorf("lint of names and help texts: got problems %v and error %v, want none", problems, err)
	}
}

// TestPerNode checks in which clusters the gauges with the label node are served, and that the sums are always served.
func TestPerNode(t *testing.T) {
	for name, c := range map[string]struct {
		per   PerNode
		nodes int
		want  bool
	}{
		"auto, as many nodes as allowed": {PerNodeAuto, maxPerNode, true},
		"auto, one node more":            {PerNodeAuto, maxPerNode + 1, false},
		"on":                             {PerNodeOn, maxPerNode + 1, true},
		"off":                            {PerNodeOff, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			l := ledger.New()
			for i := range c.nodes {
				l.SetNode(node(fmt.Sprint("node-", i), netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24).String(), nil))
			}
			ch := make(chan prometheus.Metric, 100_000)
			collect := collection{ch: ch, now: time.Unix(0, 0), Sources: &Sources{
				Ledger: l, PerNode: c.per, Strict: func() sets.Set[string] { return nil },
				Subnets: func() (int, []netip.Prefix) { return 0, nil },
				Waiting: func() []WaitingPods { return []WaitingPods{{Node: "node-0", State: nodeutil.Ready, Pods: 2}} },
			}}
			collect.nodes()
			collect.waiting()
			close(ch)
			perNode, sums := map[string]int{}, map[string]float64{}
			for m := range ch {
				var text dto.Metric
				if err := m.Write(&text); err != nil {
					t.Fatal(err)
				}
				desc := fqName.FindStringSubmatch(m.Desc().String())[1]
				labels := ""
				for _, l := range text.GetLabel() {
					if l.GetName() == "node" {
						perNode[desc]++
					}
					labels += " " + l.GetValue()
				}
				sums[desc+labels] = text.GetGauge().GetValue()
			}
			want := map[string]int{}
			if c.want {
				want = map[string]int{
					"fixedip_pool_addresses": 3 * c.nodes, "fixedip_subnet_free_addresses": c.nodes, "fixedip_subnet_addresses": c.nodes, "fixedip_waiting_pods": 1,
				}
			}
			if !maps.Equal(perNode, want) {
				t.Errorf("got series with the label node %v, want %v", perNode, want)
			}
			if got, want := sums["fixedip_addresses IPv4"], float64(254*c.nodes); got != want {
				t.Errorf("got %v addresses, want %v", got, want)
			}
			if got := sums["fixedip_pods_waiting_for_node ready"]; got != 2 {
				t.Errorf("got %v waiting pods, want 2", got)
			}
		})
	}
}

// TestSeen checks that observe returns the time since which the oldest key was in all observations: the time of a key begins
// again after an observation without the key.
func TestSeen(t *testing.T) {
	var s seen
	at := func(seconds int64) time.Time { return time.Unix(seconds, 0) }
	for _, step := range []struct {
		now  int64
		keys []string
		want int64
	}{
		{10, []string{"a"}, 10},
		{20, []string{"a", "b"}, 10},
		{30, []string{"b"}, 20},
		{40, []string{"a", "b"}, 20},
		{50, []string{"a"}, 40},
	} {
		if got := s.observe(step.keys, at(step.now)); !got.Equal(at(step.want)) {
			t.Errorf("at %d with %v: got %v, want %v", step.now, step.keys, got, at(step.want))
		}
	}
	if got := s.observe(nil, at(60)); !got.IsZero() {
		t.Errorf("without keys: got %v, want the zero time", got)
	}
}
