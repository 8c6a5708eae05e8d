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
		nobody  bool
		guessed bool
	}{
		"as the scheduler writes it":                {"mysql-0", pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql"), nil, sts("mysql"), false, false},
		"by hand, the pod is there":                 {"mysql-0", pool.ForOwner("db/mysql-0"), mysqlPod, sts("mysql"), false, true},
		"by hand, for a StatefulSet that it is not": {"mysql-0", pool.OwnedEntry("db", "mysql-0", "StatefulSet", "other"), mysqlPod, sts("mysql"), false, true},
		"by hand, the pod is yet to come":           {"mysql-0", pool.ForOwner("db/mysql-0"), nil, sts("mysql"), false, true},
		"by hand, for a kind that is not ours":      {"mysql-0", pool.OwnedEntry("db", "mysql-0", "Deployment", "mysql"), nil, sts("mysql"), false, true},
		"by hand, for a name without a number":      {"mysql", pool.ForOwner("db/mysql"), nil, v1alpha1.OwnerReference{}, true, false},
		"by hand, for a number alone":               {"-0", pool.ForOwner("db/-0"), nil, v1alpha1.OwnerReference{}, true, false},
		"a pod of its own":                          {"mysql-0", pool.ForOwner("db/mysql-0"), of("", "", ""), v1alpha1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "mysql-0"}, false, true},
		"claimed for a pod of its own":              {"mysql-0", pool.BarePodEntry("db", "mysql-0"), of("", "", ""), v1alpha1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "mysql-0"}, false, false},
		"claimed for a pod of its own that is gone": {"mysql-0", pool.BarePodEntry("db", "mysql-0"), nil, v1alpha1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "mysql-0"}, false, false},
		"claimed for one, and another has the name": {"mysql-0", pool.BarePodEntry("db", "mysql-0"), mysqlPod, sts("mysql"), false, true},
		"a pod of a ReplicaSet":                     {"mysql-0", pool.ForOwner("db/mysql-0"), of("apps/v1", "ReplicaSet", "mysql"), v1alpha1.OwnerReference{}, true, false},
		"for one pod, in so many words":             {"mysql-0", pool.UnreservedEntry("db", "mysql-0"), of("", "", ""), v1alpha1.OwnerReference{}, true, false},
	} {
		got, ok := reclaim.InferOwner(c.podName, c.entry, c.pod)
		if got != c.want || ok == c.nobody {
			t.Errorf("%s: %+v, %v", name, got, ok)
		}
		if ok && reclaim.NamesWorkload(c.entry, got) == c.guessed {
			t.Errorf("%s: %+v names %+v: %v", name, c.entry, got, !c.guessed)
		}
	}
}

// TestClaimOfAPodThatIsGone checks the claim of a bare pod without a FixedIP: it is released if the pod is gone, left alone
// until the pod has IPs, and then recorded.
func TestClaimOfAPodThatIsGone(t *testing.T) {
	alone := reclaim.Workload{OwnerReference: v1alpha1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "mysql-0"}}
	s := reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Workload: alone}
	if next := decide(at(s)); next.Type != reclaim.ReleaseEntries || next.Node != "node-1" {
		t.Errorf("it is gone: %+v", next)
	}
	s.Workload.Exists, s.Workload.UID = true, "pod-1"
	for _, pod := range []*corev1.Pod{podOn(""), podOn("node-1")} {
		s.Pod = pod
		if next := decide(at(s)); next.Type != reclaim.Nothing {
			t.Errorf("it is yet to run: %+v", next)
		}
	}
	s.Pod = podOn("node-1", "10.0.1.6")
	if next := decide(at(s)); next.Type != reclaim.CreateRecord || next.Spec.Owner.Kind != "Pod" {
		t.Errorf("it runs: %+v", next)
	}
}

// TestHandWrittenStands checks that an entry that a user wrote before the workload exists is not released, and that it is
// recorded when its pod runs.
func TestHandWrittenStands(t *testing.T) {
	s := reclaim.State{Held: []ledger.NodeAddresses{held("node-1", "10.0.1.6")}, Workload: gone, Guessed: true}
	if next := decide(at(s)); next.Type != reclaim.Nothing {
		t.Errorf("%+v", next)
	}
	s.Workload, s.Pod = standing, podOn("node-1", "10.0.1.6")
	if next := decide(at(s)); next.Type != reclaim.CreateRecord || next.Spec.Owner != mysql {
		t.Errorf("its pod has come: %+v", next)
	}
}
