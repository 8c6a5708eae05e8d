// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package inuse

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/pool"
)

// goes is the last version of a pod that is deleted with a grace period.
func goes(pod *corev1.Pod, node string, grace int64) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.Spec.NodeName = node
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &metav1.Time{Time: time.Unix(1, 0)}, ptr.To(grace)
	return pod
}

// A pod that is gone from the API may still run. It does not if its kubelet reported that it ended, if it was never on
// the node, if its agent has listed its address since, and after the time that agents take to report.
func TestTerminatedPods(t *testing.T) {
	a, b := netip.MustParseAddr("10.0.1.6"), netip.MustParseAddr("fd00::6")
	begun := time.Unix(1000, 0)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "web-x"}, Spec: corev1.PodSpec{NodeName: "n"}}
	lists := func(node string, addrs ...netip.Addr) pool.Node {
		n := pool.Node{Name: node, Used: map[netip.Addr]string{}}
		for _, a := range addrs {
			n.Used[a] = "db/web-x"
		}
		return n
	}
	type step struct {
		// after is when, since the start.
		after time.Duration
		// went is how the pod goes then, or what the agent of a node lists then, by the API server.
		went   *corev1.Pod
		missed bool
		listed pool.Node
		// recorded is when the controller has seen that the pod was gone, before the start; 0: it has not. said is
		// the node whose agent listed both addresses then, by the controller.
		recorded time.Duration
		said     string
		// want is how long after the start it is sure that nothing runs with the addresses on n; 0: it is.
		want time.Duration
	}
	for name, steps := range map[string][]step{
		"by force":                                 {{after: time.Hour, went: goes(pod, "n", 0), want: time.Hour + time.Minute}, {after: time.Hour + time.Minute}},
		"by force, listed, and no more":            {{after: time.Hour, went: goes(pod, "n", 0), want: time.Hour + time.Minute}, {after: time.Hour, listed: lists("n", a, b)}},
		"by force, one of two listed":              {{after: time.Hour, went: goes(pod, "n", 0), want: time.Hour + time.Minute}, {after: time.Hour, listed: lists("n", a), want: time.Hour + time.Minute}, {after: time.Hour, listed: lists("n", b)}},
		"by force, listed elsewhere":               {{after: time.Hour, went: goes(pod, "n", 0), want: time.Hour + time.Minute}, {after: time.Hour, listed: lists("m", a, b), want: time.Hour + time.Minute}},
		"listed before it went":                    {{after: time.Hour, listed: lists("n", a, b)}, {after: time.Hour, went: goes(pod, "n", 0), want: time.Hour + time.Minute}},
		"its kubelet has said that it is over":     {{after: time.Hour, went: goes(pod, "n", 30)}},
		"it is over, and nobody deletes it":        {{after: time.Hour, went: pod}},
		"it was bound elsewhere":                   {{after: time.Hour, went: goes(pod, "m", 0)}},
		"it was never bound":                       {{after: time.Hour, went: goes(pod, "", 0)}},
		"nobody saw its end":                       {{after: time.Hour, went: goes(pod, "n", 30), missed: true, want: time.Hour + time.Minute}},
		"nobody saw whether it was bound":          {{after: time.Hour, went: goes(pod, "", 0), missed: true, want: time.Hour + time.Minute}},
		"before the start":                         {{want: time.Minute}, {after: 59 * time.Second, want: time.Minute}, {after: time.Minute}},
		"before the start, listed, and no more":    {{want: time.Minute}, {after: time.Second, listed: lists("n", a, b)}},
		"before the start, as the controller saw":  {{recorded: 40 * time.Second, want: 20 * time.Second}, {after: 19 * time.Second, recorded: 40 * time.Second, want: 20 * time.Second}, {after: 20 * time.Second, recorded: 40 * time.Second}},
		"long before, as the controller saw":       {{recorded: time.Minute}},
		"one of the name, as the controller saw":   {{after: time.Second, recorded: time.Hour}, {after: 2 * time.Second, recorded: time.Hour, went: goes(pod, "n", 0), want: 62 * time.Second}},
		"listed, as the controller saw":            {{recorded: time.Second, said: "n"}},
		"listed since, as the controller saw":      {{want: time.Minute}, {after: 2 * time.Second, recorded: -time.Second, said: "n"}},
		"listed elsewhere, as the controller saw":  {{recorded: time.Second, said: "m", want: 59 * time.Second}},
		"the controller saw an earlier one listed": {{after: time.Second, recorded: time.Hour, said: "n"}, {after: 2 * time.Second, recorded: time.Hour, said: "n", went: goes(pod, "n", 0), want: 62 * time.Second}},
		"just after the start, its kubelet said":   {{after: time.Second, went: goes(pod, "n", 30)}},
		"a second one of the name":                 {{after: time.Hour, went: goes(pod, "n", 0), want: time.Hour + time.Minute}, {after: time.Hour + 50*time.Second, went: goes(pod, "n", 0), want: time.Hour + 110*time.Second}, {after: time.Hour + time.Minute, want: time.Hour + 110*time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			d := terminatedPods{timeout: time.Minute}
			d.completeAt(begun)
			for i, s := range steps {
				now := begun.Add(s.after)
				if s.went != nil {
					d.added(pod)
					if d.note("db/web-x", lists("n", a, b), []netip.Addr{a, b}, nil, now) {
						t.Errorf("%d: what the agent lists while the pod lives counts", i)
					}
					if !d.lives("db/web-x") {
						t.Errorf("%d: it does not live", i)
					}
					d.deleted(s.went, s.missed, now)
				}
				if d.lives("db/web-x") {
					t.Errorf("%d: it lives", i)
				}
				if s.listed.Name != "" {
					d.note("db/web-x", s.listed, []netip.Addr{a, b}, nil, now)
				}
				var recorded *v1alpha1.Departure
				if s.recorded != 0 {
					recorded = &v1alpha1.Departure{PodName: "web-x", At: metav1.NewTime(begun.Add(-s.recorded))}
				}
				if s.said != "" {
					recorded.NodeName, recorded.Listed = s.said, []string{a.String(), b.String()}
				}
				at, unlisted := d.until("db/web-x", "n", []netip.Addr{a, b}, recorded, now)
				if (s.want == 0) != at.IsZero() || s.want > 0 && !at.Equal(begun.Add(s.want)) || (len(unlisted) == 0) != at.IsZero() {
					t.Errorf("%d: until %v, unlisted %v, want %v", i, at, unlisted, begun.Add(s.want))
				}
				if other, _ := d.until("db/web-y", "n", []netip.Addr{a}, nil, begun); other.IsZero() {
					t.Errorf("%d: what was seen of one pod counts for another", i)
				}
			}
			// Nothing stays of those that are long gone.
			d.deleted(goes(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "last"}}, "n", 0), false, begun.Add(24*time.Hour))
			if len(d.gone) != 1 || len(d.order) != 1 || len(d.living) != 0 {
				t.Errorf("%v, %v, %v are left", d.gone, d.order, d.living)
			}
		})
	}
}

// Pods that are deleted one after the other are forgotten after the timeout.
func TestTerminatedPodsAreForgotten(t *testing.T) {
	d := terminatedPods{timeout: time.Minute}
	begun := time.Unix(1000, 0)
	d.completeAt(begun)
	for i := range 10000 {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: fmt.Sprintf("web-%d", i)}}
		d.added(pod)
		d.deleted(goes(pod, "n", 0), false, begun.Add(time.Duration(i)*time.Second))
	}
	if len(d.gone) > 61 || len(d.order) != len(d.gone) || len(d.living) > 0 {
		t.Errorf("%d, %d, %d are kept", len(d.gone), len(d.order), len(d.living))
	}
}

// Finding S4. The time of a pod that this process did not see go begins when its watch of pods is complete, or when the
// controller saw that the pod was gone if that is later, and again after a gap of the watch.
func TestTerminatedBeforeTheList(t *testing.T) {
	start, list := time.Unix(1000, 0), time.Unix(1300, 0)
	addrs := []netip.Addr{netip.MustParseAddr("10.0.1.6")}
	recorded := func(at time.Time) *v1alpha1.Departure {
		return &v1alpha1.Departure{PodName: "web-x", At: metav1.NewTime(at)}
	}
	for name, c := range map[string]struct {
		// gap: the watch of pods lists again now.
		gap      bool
		complete time.Time
		recorded *v1alpha1.Departure
		// want is how long from now the address is blocked.
		want time.Duration
	}{
		"the list came 5 minutes after the start":                             {complete: list, want: time.Minute},
		"the controller saw it go after the start, before the list":           {complete: list, recorded: recorded(list.Add(-10 * time.Second)), want: 50 * time.Second},
		"the controller saw it go after the list began":                       {complete: start, recorded: recorded(list.Add(-10 * time.Second)), want: 50 * time.Second},
		"the watch has a gap":                                                 {complete: start, gap: true, want: time.Minute},
		"the watch has no list yet":                                           {gap: true, want: time.Minute},
		"the watch has shown all for long":                                    {complete: start},
		"the watch has a gap, and the controller saw it go before that":       {complete: start, gap: true, recorded: recorded(start)},
		"the watch had a gap that ended now":                                  {complete: list, want: time.Minute},
		"the controller saw it go long before the list, so no pod has it now": {complete: list, recorded: recorded(start)},
	} {
		d := terminatedPods{timeout: time.Minute, complete: c.complete, incomplete: func() bool { return c.gap }}
		at, _ := d.until("db/web-x", "n", addrs, c.recorded, list)
		if c.want == 0 && !at.IsZero() || c.want > 0 && !at.Equal(list.Add(c.want)) {
			t.Errorf("%s: until %v, want %v", name, at, list.Add(c.want))
		}
	}
}

// Finding S4. What was seen of a pod before a gap of the watch does not count for a later pod of the name.
func TestTerminatedBeforeAGap(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "web-x"}}
	addrs := []netip.Addr{netip.MustParseAddr("10.0.1.6")}
	now := time.Unix(1000, 0)
	d := terminatedPods{timeout: time.Minute, complete: time.Unix(1, 0)}
	d.deleted(goes(pod, "n", 30), false, now)
	if at, _ := d.until("db/web-x", "n", addrs, nil, now); !at.IsZero() {
		t.Errorf("blocked until %v after its kubelet reported that it ended", at)
	}
	d.completeAt(now.Add(10 * time.Second))
	if at, _ := d.until("db/web-x", "n", addrs, nil, now.Add(10*time.Second)); !at.Equal(now.Add(70 * time.Second)) {
		t.Errorf("after a gap: until %v", at)
	}
}
