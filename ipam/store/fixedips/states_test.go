// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedips

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllertest"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/conformance"
	"fixedip.io/fixedip/ipam/core/reservation"
	"fixedip.io/fixedip/ipam/scheme"
	"fixedip.io/fixedip/ipam/store/watch"
)

func TestStates(t *testing.T) {
	kinds, err := scheme.New()
	if err != nil {
		t.Fatal(err)
	}
	informers := &informertest.FakeInformers{Scheme: kinds}
	p, err := CountStates(t.Context(), informers)
	if err != nil {
		t.Fatal(err)
	}
	informer, err := informers.FakeInformerFor(t.Context(), &v1alpha1.FixedIP{})
	if err != nil {
		t.Fatal(err)
	}
	in := func(state reservation.State) *v1alpha1.FixedIP {
		return record(func(r *v1alpha1.FixedIP) {
			if state == reservation.InUse {
				r.Status.PodUID = "pod-1"
			}
		})
	}
	for _, step := range []struct {
		name string
		do   func(*controllertest.FakeInformer)
		want map[reservation.State]int
	}{
		{"a FixedIP is created", func(i *controllertest.FakeInformer) { i.Add(in(reservation.Unseen)) }, map[reservation.State]int{reservation.Unseen: 1}},
		{"a pod uses the addresses", func(i *controllertest.FakeInformer) { i.Update(in(reservation.Unseen), in(reservation.InUse)) }, map[reservation.State]int{reservation.Unseen: 0, reservation.InUse: 1}},
		{"another FixedIP is created", func(i *controllertest.FakeInformer) { i.Add(in(reservation.InUse)) }, map[reservation.State]int{reservation.Unseen: 0, reservation.InUse: 2}},
		{"a FixedIP is deleted", func(i *controllertest.FakeInformer) { i.Delete(in(reservation.InUse)) }, map[reservation.State]int{reservation.Unseen: 0, reservation.InUse: 1}},
	} {
		step.do(informer)
		if diff := cmp.Diff(step.want, p.Counts()); diff != "" {
			t.Errorf("%s (-want +got): %s", step.name, diff)
		}
	}
	// An informer passes this type to OnDelete if the watch missed the deletion.
	watch.Handler(p.change).OnDelete(toolscache.DeletedFinalStateUnknown{Obj: in(reservation.InUse)})
	if got := p.Counts()[reservation.InUse]; got != 0 {
		t.Errorf("got %d FixedIPs in use after a deletion that the watch missed, want 0", got)
	}
	at := func(seconds int64) metav1.Time { return metav1.NewTime(time.Unix(seconds, 0)) }
	mismatched := func(name, reason string, since int64, pod types.UID) *v1alpha1.FixedIP {
		return record(func(r *v1alpha1.FixedIP) {
			r.Name, r.UID, r.Status.PodUID, r.Status.MismatchPodUID = name, types.UID(name), "pod-2", pod
			r.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionAsReserved, Status: metav1.ConditionFalse, Reason: reason, LastTransitionTime: at(since)}}
		})
	}
	// problems contains the number of mismatches by reason, and the Unix times at which the oldest mismatch and the oldest
	// deletion began; 0: none.
	type problems struct {
		Mismatched        map[string]int
		Oldest, Releasing int64
	}
	seconds := func(t time.Time) int64 {
		if t.IsZero() {
			return 0
		}
		return t.Unix()
	}
	for _, step := range []struct {
		name          string
		before, after *v1alpha1.FixedIP
		want          problems
	}{
		{"a pod runs with a wrong address", nil, mismatched("a", conformance.ReasonWrongAddress, 100, "pod-2"), problems{map[string]int{"WrongAddress": 1}, 100, 0}},
		{"its eviction is blocked", mismatched("a", conformance.ReasonWrongAddress, 100, "pod-2"), mismatched("a", conformance.ReasonRestartBlocked, 160, "pod-2"),
			problems{map[string]int{"RestartBlocked": 1}, 100, 0}},
		{"a condition about a former pod", nil, mismatched("b", conformance.ReasonRestarting, 50, "pod-1"), problems{map[string]int{"RestartBlocked": 1}, 100, 0}},
		{"the next pod has the mismatch too", mismatched("a", conformance.ReasonRestartBlocked, 160, "pod-1"), record(func(r *v1alpha1.FixedIP) {
			r.Name, r.UID, r.Status.PodUID, r.Status.MismatchPodUID = "a", "a", "pod-3", "pod-3"
			r.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionAsReserved, Status: metav1.ConditionFalse, Reason: "NoPoolEntry", LastTransitionTime: at(200)}}
		}), problems{map[string]int{"NoPoolEntry": 1}, 200, 0}},
		{"the FixedIP is being deleted", nil, record(func(r *v1alpha1.FixedIP) { r.Name, r.UID, r.DeletionTimestamp = "c", "c", ptr.To(at(300)) }), problems{map[string]int{"NoPoolEntry": 1}, 200, 300}},
		{"the deletion is complete", record(func(r *v1alpha1.FixedIP) { r.Name, r.UID, r.DeletionTimestamp = "c", "c", ptr.To(at(300)) }), nil, problems{map[string]int{"NoPoolEntry": 1}, 200, 0}},
		{"the mismatch ends", mismatched("a", "NoPoolEntry", 200, "pod-3"), nil, problems{map[string]int{}, 0, 0}},
	} {
		p.change(step.before, step.after)
		counts, oldest := p.Mismatched()
		if diff := cmp.Diff(step.want, problems{counts, seconds(oldest), seconds(p.OldestRelease())}); diff != "" {
			t.Errorf("%s (-want +got): %s", step.name, diff)
		}
	}
}
