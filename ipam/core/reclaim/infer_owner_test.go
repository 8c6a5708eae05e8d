// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package reclaim_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reclaim"
)

func TestInferOwner(t *testing.T) {
	of := func(apiVersion, kind, name string) *corev1.Pod {
		p := podOn("node-1")
		if kind != "" {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: name, UID: "x", Controller: ptr.To(true)}}
		}
		return p
	}
	mysqlPod := of("apps/v1", "StatefulSet", "mysql")
	sts := func(name string) v1alpha1.OwnerReference {
		return v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: name}
	}
	for name, c := range map[string]struct {
		podName string
		entry   pool.Entry
		pod     *corev1.Pod
		want    v1alpha1.OwnerReference
		none    bool
		guessed bool
	}{
		"entry of the scheduler":                                       {"mysql-0", pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql"), nil, sts("mysql"), false, false},
		"entry of a user, the pod exists":                              {"mysql-0", pool.ForOwner("db/mysql-0"), mysqlPod, sts("mysql"), false, true},
		"entry of a user for another StatefulSet than that of the pod": {"mysql-0", pool.OwnedEntry("db", "mysql-0", "StatefulSet", "other"), mysqlPod, sts("mysql"), false, true},
		"entry of a user, no pod exists":                               {"mysql-0", pool.ForOwner("db/mysql-0"), nil, sts("mysql"), false, true},
		"entry of a user for a Deployment":                             {"mysql-0", pool.OwnedEntry("db", "mysql-0", "Deployment", "mysql"), nil, sts("mysql"), false, true},
		"entry of a user, the pod name has no ordinal":                 {"mysql", pool.ForOwner("db/mysql"), nil, v1alpha1.OwnerReference{}, true, false},
		"entry of a user, the pod name is only an ordinal":             {"-0", pool.ForOwner("db/-0"), nil, v1alpha1.OwnerReference{}, true, false},
		"entry of a user for a bare pod":                               {"mysql-0", pool.ForOwner("db/mysql-0"), of("", "", ""), v1alpha1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "mysql-0"}, false, true},
		"claim for a bare pod":                                         {"mysql-0", pool.BarePodEntry("db", "mysql-0"), of("", "", ""), v1alpha1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "mysql-0"}, false, false},
		"claim for a bare pod that does not exist":                     {"mysql-0", pool.BarePodEntry("db", "mysql-0"), nil, v1alpha1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "mysql-0"}, false, false},
		"claim for a bare pod, the name belongs to a StatefulSet pod":  {"mysql-0", pool.BarePodEntry("db", "mysql-0"), mysqlPod, sts("mysql"), false, true},
		"entry of a user for a pod of a ReplicaSet":                    {"mysql-0", pool.ForOwner("db/mysql-0"), of("apps/v1", "ReplicaSet", "mysql"), v1alpha1.OwnerReference{}, true, false},
		"Unreserved entry":                                             {"mysql-0", pool.UnreservedEntry("db", "mysql-0"), of("", "", ""), v1alpha1.OwnerReference{}, true, false},
	} {
		got, ok := reclaim.InferOwner(c.podName, c.entry, c.pod)
		if got != c.want || ok == c.none {
			t.Errorf("%s: InferOwner returns %+v, %v; want %+v, %v", name, got, ok, c.want, !c.none)
		}
		if ok && reclaim.NamesWorkload(c.entry, got) == c.guessed {
			t.Errorf("%s: NamesWorkload(%+v, %+v) returns %v, want %v", name, c.entry, got, c.guessed, !c.guessed)
		}
	}
}

// TestClaimOfABarePod checks the claim of a bare pod without a FixedIP: it is released if the pod does not exist, and
// recorded when the pod has IPs.
func TestClaimOfABarePod(t *testing.T) {
	bare := reclaim.Workload{OwnerReference: v1alpha1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "mysql-0"}}
	s := reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Workload: bare}
	if next := decide(at(s)); next.Type != reclaim.ReleaseEntries || next.Node != "node-1" {
		t.Errorf("no pod exists: Decide returns %+v, want ReleaseEntries on node-1", next)
	}
	s.Workload.Exists, s.Workload.UID = true, "uid-mysql-0"
	for _, pod := range []*corev1.Pod{podOn(""), podOn("node-1")} {
		s.Pod = pod
		if next := decide(at(s)); next.Type != reclaim.Nothing {
			t.Errorf("the pod has no IP yet: Decide returns %+v, want no action", next)
		}
	}
	s.Pod = podOn("node-1", "10.0.1.6")
	if next := decide(at(s)); next.Type != reclaim.CreateRecord || next.Spec.Owner.Kind != "Pod" {
		t.Errorf("the pod has its IP: Decide returns %+v, want CreateRecord with an owner of kind Pod", next)
	}
}

// TestEntryOfAUser checks that an entry that a user wrote before the workload existed is not released, and that it is
// recorded when its pod runs.
func TestEntryOfAUser(t *testing.T) {
	s := reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Workload: gone, OwnerInferred: true}
	if next := decide(at(s)); next.Type != reclaim.Nothing {
		t.Errorf("the workload does not exist yet: Decide returns %+v, want no action", next)
	}
	s.Workload, s.Pod = existing, podOn("node-1", "10.0.1.6")
	if next := decide(at(s)); next.Type != reclaim.CreateRecord || next.Spec.Owner != mysql {
		t.Errorf("the pod runs: Decide returns %+v, want CreateRecord with owner %+v", next, mysql)
	}
}
