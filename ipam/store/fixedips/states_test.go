// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedips

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllertest"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
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
}
