// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package conflict

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/test/controllertest"
	"fixedip.io/fixedip/test/gen"
)

var now = time.Unix(1000, 0)

func podOn(node string, ips ...string) *corev1.Pod { return gen.Pod("mysql-0", gen.On(node, ips...)) }

func record(change ...func(*v1alpha1.FixedIP)) *v1alpha1.FixedIP {
	return gen.FixedIP("mysql-0", change...)
}

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
		users addressUsers
		want  map[string]string
	}{
		"one pod, one FixedIP, one pool": {users: addressUsers{pods: []*corev1.Pod{named("mysql-0")}, records: []*v1alpha1.FixedIP{recordOf("mysql-0")}, nodes: []string{"node-1"}}},
		"a FixedIP without a pod":        {users: addressUsers{records: []*v1alpha1.FixedIP{recordOf("mysql-0")}}},
		"two pods": {users: addressUsers{pods: []*corev1.Pod{named("b"), named("a")}},
			want: map[string]string{"pods": "more than one pod runs with IP 10.0.1.6: db/a on node node-1 and db/b on node node-1; delete all but one (keep the pod for which a FixedIP reserves the IP)"}},
		"two FixedIPs": {users: addressUsers{records: []*v1alpha1.FixedIP{recordOf("b"), recordOf("a")}},
			want: map[string]string{"fixedips": "more than one FixedIP reserves IP 10.0.1.6: db/a and db/b; delete all but one (keep the FixedIP of the pod that runs with the IP)"}},
		"two pools": {users: addressUsers{nodes: []string{"node-2", "node-1"}},
			want: map[string]string{"pools": "more than one pool offers IP 10.0.1.6: the pools of nodes node-1 and node-2; remove the entry from all but one (keep it on the node of the pod that runs with the IP)"}},
		"a pod with the address of another pod": {users: addressUsers{pods: []*corev1.Pod{named("web-0")}, records: []*v1alpha1.FixedIP{recordOf("mysql-0")}},
			want: map[string]string{"wrong_pod": "pod db/web-0 on node node-1 runs with IP 10.0.1.6, which is reserved for pod db/mysql-0; delete each pod that runs with an IP reserved for another pod, unless a FixedIP reserves the IP for it as well"}},
	} {
		c.users.addr = netip.MustParseAddr("10.0.1.6")
		if c.want == nil {
			c.want = map[string]string{}
		}
		if diff := cmp.Diff(c.want, c.users.conflicts("")); diff != "" {
			t.Errorf("%s (-want +got): %s", name, diff)
		}
	}
}

// TestConflictsFor checks that the message for a namespace reports the conflict and names no object of another namespace.
func TestConflictsFor(t *testing.T) {
	mine := record(func(r *v1alpha1.FixedIP) { r.Name, r.Spec.PodName = "mysql-0", "mysql-0" })
	other := record(func(r *v1alpha1.FixedIP) { r.Namespace, r.Name, r.Spec.PodName = "shop", "secret-0", "secret-0" })
	pod := podOn("node-1", "10.0.1.6")
	pod.Name = "mysql-0"
	c := addressUsers{addr: netip.MustParseAddr("10.0.1.6"), pods: []*corev1.Pod{pod}, records: []*v1alpha1.FixedIP{mine, other}}
	for namespace, want := range map[string]map[string]string{
		"db": {
			"fixedips":  "more than one FixedIP reserves IP 10.0.1.6: db/mysql-0 and one of another namespace; delete all but one (keep the FixedIP of the pod that runs with the IP)",
			"wrong_pod": "pod db/mysql-0 on node node-1 runs with IP 10.0.1.6, which is reserved for a pod of another namespace; delete each pod that runs with an IP reserved for another pod, unless a FixedIP reserves the IP for it as well",
		},
		"shop": {
			"fixedips":  "more than one FixedIP reserves IP 10.0.1.6: one of another namespace and shop/secret-0; delete all but one (keep the FixedIP of the pod that runs with the IP)",
			"wrong_pod": "a pod of another namespace runs with IP 10.0.1.6, which is reserved for pod shop/secret-0; delete each pod that runs with an IP reserved for another pod, unless a FixedIP reserves the IP for it as well",
		},
	} {
		if diff := cmp.Diff(want, c.conflicts(namespace)); diff != "" {
			t.Errorf("%s (-want +got): %s", namespace, diff)
		}
	}
}

// TestReport checks that each conflict of a pod is seen in an event. The events of one pod must not be merged.
func TestReport(t *testing.T) {
	var recorded controllertest.MergedEvents
	pod := podOn("node-1", "10.0.1.6", "fd00::6")
	pod.Name = "web-0"
	for _, a := range pod.Status.PodIPs {
		c := addressUsers{addr: netip.MustParseAddr(a.IP), pods: []*corev1.Pod{pod, pod}, records: []*v1alpha1.FixedIP{record()}}
		for _, kind := range []string{twoPods, wrongPod} {
			before := len(recorded.Notes)
			(&Reconciler{Events: &recorded}).report(c, kind)
			if got := len(recorded.Notes) - before; got != 2 {
				t.Errorf("%s, conflict %s: got %d new events, want one on the pod and one on the FixedIP", a.IP, kind, got)
			}
		}
	}
}

func TestCondition(t *testing.T) {
	shared := func(message string) *v1alpha1.FixedIP {
		return record(func(r *v1alpha1.FixedIP) {
			c, _ := conditionOf(r, []string{message}, now)
			r.Status.Conditions = []metav1.Condition{c}
		})
	}
	for name, c := range map[string]struct {
		record    *v1alpha1.FixedIP
		conflicts []string
		// want is "status message" of the condition to write; empty: nothing is written.
		want string
	}{
		"no condition, no conflict":               {record: record()},
		"no condition, two conflicts":             {record: record(), conflicts: []string{"b", "a"}, want: "False a; and b"},
		"condition False, the same conflict":      {record: shared("a"), conflicts: []string{"a"}},
		"condition False, another conflict":       {record: shared("a"), conflicts: []string{"b"}, want: "False b"},
		"condition False, the conflict has ended": {record: shared("a"), want: "True No other pod, FixedIP or pool has the IPs of this FixedIP"},
		"condition True, no conflict": {record: record(func(r *v1alpha1.FixedIP) {
			c, _ := conditionOf(shared("a"), nil, now)
			r.Status.Conditions = []metav1.Condition{c}
		})},
	} {
		got, ok := conditionOf(c.record, c.conflicts, now)
		text := ""
		if ok {
			text = string(got.Status) + " " + got.Message
		}
		if text != c.want || ok != (c.want != "") {
			t.Errorf("%s: got %q to write (%t), want %q", name, text, ok, c.want)
		}
	}
}
