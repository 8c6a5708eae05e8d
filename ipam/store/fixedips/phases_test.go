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
	"fixedip.io/fixedip/ipam/scheme"
	"fixedip.io/fixedip/ipam/store/watch"
)

func TestPhases(t *testing.T) {
	kinds, err := scheme.New()
	if err != nil {
		t.Fatal(err)
	}
	informers := &informertest.FakeInformers{Scheme: kinds}
	p, err := CountPhases(t.Context(), informers)
	if err != nil {
		t.Fatal(err)
	}
	informer, err := informers.FakeInformerFor(t.Context(), &v1alpha1.FixedIP{})
	if err != nil {
		t.Fatal(err)
	}
	in := func(phase v1alpha1.Phase) *v1alpha1.FixedIP {
		return record(func(r *v1alpha1.FixedIP) { r.Status.Phase = phase })
	}
	for _, step := range []struct {
		name string
		do   func(*controllertest.FakeInformer)
		want map[v1alpha1.Phase]int
	}{
		{"a FixedIP is created", func(i *controllertest.FakeInformer) { i.Add(in("")) }, map[v1alpha1.Phase]int{"": 1}},
		{"the FixedIP gets a phase", func(i *controllertest.FakeInformer) { i.Update(in(""), in(v1alpha1.PhaseInUse)) }, map[v1alpha1.Phase]int{"": 0, v1alpha1.PhaseInUse: 1}},
		{"another FixedIP is created", func(i *controllertest.FakeInformer) { i.Add(in(v1alpha1.PhaseInUse)) }, map[v1alpha1.Phase]int{"": 0, v1alpha1.PhaseInUse: 2}},
		{"a FixedIP is deleted", func(i *controllertest.FakeInformer) { i.Delete(in(v1alpha1.PhaseInUse)) }, map[v1alpha1.Phase]int{"": 0, v1alpha1.PhaseInUse: 1}},
	} {
		step.do(informer)
		if diff := cmp.Diff(step.want, p.Counts()); diff != "" {
			t.Errorf("%s (-want +got): %s", step.name, diff)
		}
	}
	// An informer passes this type to OnDelete if the watch missed the deletion.
	watch.Handler(p.change).OnDelete(toolscache.DeletedFinalStateUnknown{Obj: in(v1alpha1.PhaseInUse)})
	if got := p.Counts()[v1alpha1.PhaseInUse]; got != 0 {
		t.Errorf("got %d FixedIPs in use after a deletion that the watch missed, want 0", got)
	}
}
