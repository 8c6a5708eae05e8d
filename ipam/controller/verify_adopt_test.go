package controller

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/pool"
)

// A pod that its agent gave another address than was claimed for it keeps that one only if it runs on once the entry
// is written. Whoever goes meanwhile leaves the address to others, and the pool as it was.
func TestLatePodGoesWhileItsAddressIsAdopted(t *testing.T) {
	const mine, claimed, has = "db/web-0", "10.0.1.200", "10.0.1.1"
	for name, c := range map[string]struct {
		// meanwhile happens at the API server once the entry is written.
		meanwhile func(s *stage, pod *corev1.Pod) error
		keeps     bool
	}{
		"it runs on": {func(*stage, *corev1.Pod) error { return nil }, true},
		"it is gone": {func(s *stage, pod *corev1.Pod) error { return s.api.Delete(t.Context(), pod) }, false},
		"another of the name has come": {func(s *stage, pod *corev1.Pod) error {
			if err := s.api.Delete(t.Context(), pod); err != nil {
				return err
			}
			next := boundPod(has)
			next.UID = "next"
			return s.api.Create(t.Context(), next)
		}, false},
		"it has failed": {func(s *stage, pod *corev1.Pod) error {
			pod.Status.Phase = corev1.PodFailed
			return s.api.Status().Update(t.Context(), pod)
		}, false},
		"it is asked to go": {func(s *stage, pod *corev1.Pod) error {
			pod.Finalizers = []string{"test/held"}
			if err := s.api.Update(t.Context(), pod); err != nil {
				return err
			}
			return s.api.Delete(t.Context(), pod)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			pod := boundPod(has)
			s := newStage(t, objects(pod.DeepCopy()), objects(pod.DeepCopy()))
			s.fill(map[string]pool.Entry{has: {}, claimed: pool.Owned("db", "web-0", "StatefulSet", "web")}, nil)
			want := s.poolOwners()
			if c.keeps {
				want[has], want[claimed] = mine, pool.ReleasedFrom(mine, s.clock.Now()).Owner
			}
			s.onPatch = func() (func(), error) {
				s.onPatch = nil
				return func() {
					var now corev1.Pod
					err := s.api.Get(t.Context(), client.ObjectKeyFromObject(pod), &now)
					if err == nil {
						err = c.meanwhile(s, &now)
					}
					if err != nil {
						t.Error(err)
					}
				}, nil
			}
			if _, err := s.verifies().Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(pod)}); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, s.poolOwners()); diff != "" {
				t.Errorf("entries (-want +got): %s", diff)
			}
			if writes := map[bool]int{true: 1, false: 2}[c.keeps]; s.patches != writes {
				t.Errorf("%d patches, want %d", s.patches, writes)
			}
		})
	}
}

// verifies is the controller that verifies, as it is after a start. It owes no pod a CiliumEndpoint.
func (s *stage) verifies() *verifyReconciler {
	a := s.adopts()
	cfg := DefaultVerifyConfig()
	cfg.Endpoints = false
	return &verifyReconciler{
		ledger: a.ledger, writer: a.writer, cached: s.cached, live: s.api, kinds: identity.NewKinds(), adoption: a.adoption,
		workloads: s, events: s.recorder, clock: s.clock, cfg: cfg, restarter: a.restarter,
	}
}
