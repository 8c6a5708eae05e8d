// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/plan"
)

func TestConflicts(t *testing.T) {
	named := func(name string) *corev1.Pod {
		p := podOn("node-1", "10.0.1.6")
		p.Name = name
		return p
	}
	recordOf := func(name string) *v1alpha1.FixedIP {
		return record(func(r *v1alpha1.FixedIP) { r.Name, r.Spec.PodName = name, name })
	}
	for name, c := range map[string]struct {
		claimants plan.Claimants
		want      map[string]string
	}{
		"one of each":            {claimants: plan.Claimants{Pods: []*corev1.Pod{named("mysql-0")}, Records: []*v1alpha1.FixedIP{recordOf("mysql-0")}, Nodes: []string{"node-1"}}},
		"a record without a pod": {claimants: plan.Claimants{Records: []*v1alpha1.FixedIP{recordOf("mysql-0")}}},
		"two pods": {claimants: plan.Claimants{Pods: []*corev1.Pod{named("b"), named("a")}},
			want: map[string]string{"pods": "pods db/a on node node-1 and db/b on node node-1 run with the same address 10.0.1.6; delete all but one"}},
		"two records": {claimants: plan.Claimants{Records: []*v1alpha1.FixedIP{recordOf("b"), recordOf("a")}},
			want: map[string]string{"fixedips": "FixedIPs db/a and db/b hold the same address 10.0.1.6; delete all but one"}},
		"two pools": {claimants: plan.Claimants{Nodes: []string{"node-2", "node-1"}},
			want: map[string]string{"pools": "the pools of nodes node-1 and node-2 offer the same address 10.0.1.6; remove the entry from all but one"}},
		"a stranger": {claimants: plan.Claimants{Pods: []*corev1.Pod{named("web-0")}, Records: []*v1alpha1.FixedIP{recordOf("mysql-0")}},
			want: map[string]string{"stranger": "pod db/web-0 on node node-1 runs with 10.0.1.6, which is kept for pod db/mysql-0; delete the pod that it is not kept for"}},
	} {
		c.claimants.Addr = addr("10.0.1.6")
		if c.want == nil {
			c.want = map[string]string{}
		}
		if diff := cmp.Diff(c.want, c.claimants.Conflicts()); diff != "" {
			t.Errorf("%s (-want +got): %s", name, diff)
		}
	}
}

// Whoever may know of one namespace is told of the conflict, and not of the others in it.
func TestConflictsFor(t *testing.T) {
	mine := record(func(r *v1alpha1.FixedIP) { r.Name, r.Spec.PodName = "mysql-0", "mysql-0" })
	other := record(func(r *v1alpha1.FixedIP) { r.Namespace, r.Name, r.Spec.PodName = "shop", "secret-0", "secret-0" })
	pod := podOn("node-1", "10.0.1.6")
	pod.Name = "mysql-0"
	c := plan.Claimants{Addr: addr("10.0.1.6"), Pods: []*corev1.Pod{pod}, Records: []*v1alpha1.FixedIP{mine, other}}
	for namespace, want := range map[string]map[string]string{
		"db": {
			"fixedips": "FixedIPs db/mysql-0 and one of another namespace hold the same address 10.0.1.6; delete all but one",
			"stranger": "pod db/mysql-0 on node node-1 runs with 10.0.1.6, which is kept for one of another namespace; delete the pod that it is not kept for",
		},
		"shop": {
			"fixedips": "FixedIPs one of another namespace and shop/secret-0 hold the same address 10.0.1.6; delete all but one",
			"stranger": "one of another namespace runs with 10.0.1.6, which is kept for pod shop/secret-0; delete the pod that it is not kept for",
		},
	} {
		if diff := cmp.Diff(want, c.ConflictsFor(namespace)); diff != "" {
			t.Errorf("%s (-want +got): %s", namespace, diff)
		}
	}
}

func TestConflictCondition(t *testing.T) {
	shared := func(message string) *v1alpha1.FixedIP {
		return record(func(r *v1alpha1.FixedIP) {
			c, _ := plan.ConflictCondition(r, []string{message}, now)
			r.Status.Conditions = []metav1.Condition{c}
		})
	}
	for name, c := range map[string]struct {
		record    *v1alpha1.FixedIP
		conflicts []string
		// want is "status message"; empty: nothing is written.
		want string
	}{
		"never any":     {record: record()},
		"the first":     {record: record(), conflicts: []string{"b", "a"}, want: "True a; and b"},
		"the same":      {record: shared("a"), conflicts: []string{"a"}},
		"another":       {record: shared("a"), conflicts: []string{"b"}, want: "True b"},
		"none any more": {record: shared("a"), want: "False Nobody else has its addresses, holds them or offers them"},
		"none since then": {record: record(func(r *v1alpha1.FixedIP) {
			c, _ := plan.ConflictCondition(shared("a"), nil, now)
			r.Status.Conditions = []metav1.Condition{c}
		})},
	} {
		got, ok := plan.ConflictCondition(c.record, c.conflicts, now)
		if text := strings.TrimSpace(string(got.Status) + " " + got.Message); text != c.want || ok != (c.want != "") {
			t.Errorf("%s: %q, %v", name, text, ok)
		}
	}
}

func TestWithCondition(t *testing.T) {
	a, b := metav1.Condition{Type: "Conflict", Reason: "1"}, metav1.Condition{Type: "Mismatch", Reason: "1"}
	a2 := a
	a2.Reason = "2"
	if diff := cmp.Diff([]metav1.Condition{a2, b}, plan.WithCondition(plan.WithCondition(plan.WithCondition(nil, b), a), a2)); diff != "" {
		t.Errorf("(-want +got): %s", diff)
	}
}

func TestDiagnose(t *testing.T) {
	pod := func(change ...func(*corev1.Pod)) *corev1.Pod {
		p := podOn("node-1", "10.0.1.6")
		p.Status.HostIP = "192.0.2.1"
		for _, c := range change {
			c(p)
		}
		return p
	}
	endpoint := func(owner string, change ...func(*plan.Endpoint)) *plan.Endpoint {
		e := &plan.Endpoint{UID: "cep-1", NodeIP: "192.0.2.1"}
		e.OwnerUID = pod().UID
		if owner != "" {
			e.OwnerUID = "former"
		}
		e.Addrs = append(e.Addrs, addr("10.0.1.6"))
		for _, c := range change {
			c(e)
		}
		return e
	}
	stopping := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }
	waiting := func(p *corev1.Pod) { p.Status.PodIPs = nil }
	other := func(e *plan.Endpoint) { e.Addrs[0] = addr("10.0.1.2") }
	for name, c := range map[string]struct {
		endpoint *plan.Endpoint
		pod      *corev1.Pod
		want     plan.Ailment
		// after is how long it is given, from when it was seen.
		after time.Duration
	}{
		"neither is there":                    {},
		"as it should be":                     {endpoint: endpoint(""), pod: pod()},
		"in two families":                     {endpoint: endpoint("", func(e *plan.Endpoint) { e.Addrs = append(e.Addrs, addr("fd00::6")) }), pod: pod(func(p *corev1.Pod) { p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: "fd00::6"}) })},
		"without owner reference":             {endpoint: endpoint("", func(e *plan.Endpoint) { e.OwnerUID = "" }), pod: pod()},
		"missing":                             {pod: pod(), want: plan.Missing, after: time.Minute},
		"not yet made":                        {pod: pod(waiting)},
		"none on the host's network":          {pod: pod(func(p *corev1.Pod) { p.Spec.HostNetwork = true })},
		"the pod stops":                       {endpoint: endpoint(""), pod: pod(stopping)},
		"the pod is gone":                     {endpoint: endpoint("former"), want: plan.Podless, after: time.Minute},
		"stuck, the pod is gone":              {endpoint: endpoint("former", func(e *plan.Endpoint) { e.Deleting = now }), want: plan.Stuck, after: time.Hour},
		"stuck, the pod runs":                 {endpoint: endpoint("", func(e *plan.Endpoint) { e.Deleting = now }), pod: pod(), want: plan.Stuck, after: time.Hour},
		"of the former pod, the next waits":   {endpoint: endpoint("former"), pod: pod(waiting), want: plan.Stale, after: time.Minute},
		"of the former pod, other address":    {endpoint: endpoint("former", other), pod: pod(), want: plan.Stale, after: time.Minute},
		"of the former pod, on another node":  {endpoint: endpoint("former", func(e *plan.Endpoint) { e.NodeIP = "192.0.2.2" }), pod: pod(), want: plan.Stale, after: time.Minute},
		"taken over with the former owner":    {endpoint: endpoint("former"), pod: pod(), want: plan.MisOwned},
		"the same where the node is unknown":  {endpoint: endpoint("former", func(e *plan.Endpoint) { e.NodeIP = "" }), pod: pod(), want: plan.MisOwned},
		"with the node's second address":      {endpoint: endpoint("former", func(e *plan.Endpoint) { e.NodeIP = "fd00::1" }), pod: pod(func(p *corev1.Pod) { p.Status.HostIPs = []corev1.HostIP{{IP: "192.0.2.1"}, {IP: "fd00::1"}} }), want: plan.MisOwned},
		"its own with another address":        {endpoint: endpoint("", other), pod: pod(), want: plan.MisAddressed, after: time.Minute},
		"its own without addresses":           {endpoint: endpoint("", func(e *plan.Endpoint) { e.Addrs = nil }), pod: pod(), want: plan.MisAddressed, after: time.Minute},
		"of something that is no pod":         {endpoint: endpoint("", other, func(e *plan.Endpoint) { e.Foreign = true }), pod: pod()},
		"of something that is no pod, orphan": {endpoint: endpoint("", func(e *plan.Endpoint) { e.Foreign = true })},
	} {
		got := plan.Diagnose(c.endpoint, c.pod)
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if got == plan.Healthy {
			continue
		}
		p := plan.EndpointPatience{Termination: time.Hour, Agent: time.Minute}
		if due := p.Due(got, c.endpoint, now); !due.Equal(now.Add(c.after)) {
			t.Errorf("%s: due after %v, want %v", name, due.Sub(now), c.after)
		}
	}
}
