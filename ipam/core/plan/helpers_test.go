// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/plan"
	"fixedip.io/fixedip/ipam/core/pool"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func held(node string, addrs ...string) ledger.Holding {
	h := ledger.Holding{Node: node}
	for _, a := range addrs {
		h.Addrs = append(h.Addrs, addr(a))
	}
	return h
}

func holdings(node string, addrs ...string) []ledger.Holding {
	return []ledger.Holding{held(node, addrs...)}
}

// podOn makes a pod that is bound to a node, or to none, and runs with addresses, if given.
func podOn(node string, ips ...string) *corev1.Pod {
	var status corev1.PodStatus
	for _, ip := range ips {
		status.PodIPs = append(status.PodIPs, corev1.PodIP{IP: ip})
	}
	return &corev1.Pod{Status: status, ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "mysql-0", UID: "pod-1"}, Spec: corev1.PodSpec{NodeName: node}}
}

var (
	mysql = v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "mysql", UID: "sts-1"}
	spec  = v1alpha1.FixedIPSpec{IPs: []string{"10.0.1.6"}, NodeName: "node-1", Owner: mysql, PodName: "mysql-0", Reclaim: identity.DefaultReclaim()}
	now   = time.Unix(1000, 0)
)

func record(change ...func(*v1alpha1.FixedIP)) *v1alpha1.FixedIP {
	r := &v1alpha1.FixedIP{
		ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "mysql-0", Finalizers: []string{v1alpha1.Finalizer}},
		Spec:       *spec.DeepCopy(),
		Status:     v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseInUse, PodUID: "pod-1"},
	}
	for _, c := range change {
		c(r)
	}
	return r
}

func deleting(r *v1alpha1.FixedIP) { r.DeletionTimestamp = &metav1.Time{} }

// The entry of a pod without a workload names none, so that it is not taken for that of a workload.
func TestEntryOf(t *testing.T) {
	r := record()
	if got, want := plan.EntryOf(r), pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql"); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	r.Spec.Owner = v1alpha1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "mysql-0"}
	if got, want := plan.EntryOf(r), pool.BarePodEntry("db", "mysql-0"); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
