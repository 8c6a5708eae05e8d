// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reclaim"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/ipam/store/workloads"
)

// TestFixedIPs checks that the controller has nothing to do for the FixedIPs of the world, and that they have the status
// that the controller would write. Otherwise bench-controller would also measure these writes.
func TestFixedIPs(t *testing.T) {
	w, err := New(Size{Nodes: 3, Fixed: 20, Absent: 10})
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]Place{
		"the pod runs":           w.FixedPod(7),
		"the pod does not exist": w.AbsentPod(7),
	} {
		t.Run(name, func(t *testing.T) {
			s := w.state(t, p)
			if a := reclaim.Decide(s); a.Type != reclaim.Nothing || !a.At.IsZero() {
				t.Errorf("FixedIP %s: got action %q of rule %q at %v with the status %+v, want none", p.Name, a.Type, a.Rule, a.At, a.Status)
			}
			seeded := s.Record.Status
			s.Record.Status = v1alpha1.FixedIPStatus{}
			if diff := cmp.Diff(reclaim.Decide(s).Status, seeded); diff != "" {
				t.Errorf("status of FixedIP %s (-of the controller +of the world): %s", p.Name, diff)
			}
		})
	}
}

// state returns the state that the controller gathers for a pod of a StatefulSet from the objects of the world.
func (w *World) state(t *testing.T, p Place) reclaim.State {
	t.Helper()
	pools := ledger.New()
	pools.SetNode(ciliumpool.FromCiliumNode(w.CiliumNode(p.Node)))
	node, _ := pools.Node(NodeName(p.Node))
	entry, exists := node.Entries[p.Address]
	if home, ok := pools.Home(p.Address); !ok || !exists || home != node.Name {
		t.Fatalf("address %s of pod %s: got home node %q and entry %+v, want an entry on node %s",
			p.Address, p.Name, home, entry, node.Name)
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(w.statefulSet(p.serial / replicas))
	if err != nil {
		t.Fatal(err)
	}
	workload := workloads.Decode(&unstructured.Unstructured{Object: object})
	policy, err := identity.Reclaim(identity.DefaultReclaim(), workload.Annotations, workload.Template)
	if err != nil {
		t.Fatal(err)
	}
	failover, err := identity.Failover(workload.Annotations, workload.Template)
	if err != nil {
		t.Fatal(err)
	}
	owner := pool.OwnerKey(p.Namespace, p.Name)
	record := w.record(p)
	s := reclaim.State{
		Record: record, Holder: p.Name, Held: pools.Held(owner), Now: w.since.Time,
		Workload: reclaim.Workload{
			OwnerReference: record.Spec.Owner, Exists: true, Reclaim: &policy, Failover: &failover,
			Excludes: workload.Excludes(p.Name), OptsOut: workload.OptsOut(),
		},
		Homes: []reclaim.AddressHome{{
			Addr: p.Address, Node: node.Name, Entry: &entry, Reported: node.Used[p.Address] == owner,
		}},
	}
	s.Workload.UID = workload.UID
	if p.serial < w.Fixed {
		s.Pod = w.Pod(p)
	} else {
		s.Idle = s.Now
	}
	return s
}
