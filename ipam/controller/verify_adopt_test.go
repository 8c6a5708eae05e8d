// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
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
			s.fill(map[string]pool.Entry{has: {}, claimed: pool.OwnedEntry("db", "web-0", "StatefulSet", "web")}, nil)
			want := s.poolOwners()
			if c.keeps {
				want[has], want[claimed] = mine, rests
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

// A pod that its agent gave what is another's by now can't keep it. It is restarted, and gets what was claimed for it.
func TestLatePodCanNotKeepItsAddress(t *testing.T) {
	const claimed, has = "10.0.1.200", "10.0.1.1"
	mine, theirs := pool.OwnedEntry("db", "web-0", "StatefulSet", "web"), pool.OwnedEntry("db", "web-1", "StatefulSet", "web")
	reports := func(p *corev1.Pod) {
		p.Annotations = map[string]string{identity.AnnotationOnMismatch: string(identity.Report)}
	}
	young := func(p *corev1.Pod) { p.CreationTimestamp = metav1.Time{Time: begin.Add(-5 * time.Second)} }
	beside := func(ip string) *corev1.Pod {
		other := podOf(1)
		other.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: ip}}}
		return other
	}
	for name, c := range map[string]struct {
		pod     *corev1.Pod
		entries map[string]pool.Entry
		used    map[string]string
		// cached and stored are another pod, as the cache and the API server have it.
		cached, stored *corev1.Pod
		// refused: a budget forbids the eviction.
		refused bool
		evicted bool
		// later is when it is looked at again, and told what the pod is told.
		later time.Duration
		told  string
	}{
		"it is another's": {pod: boundPod(has), entries: map[string]pool.Entry{has: theirs, claimed: mine}, evicted: true,
			told: "IP 10.0.1.1 on node n belongs to pod db/web-1; it was evicted to start again with its own"},
		"another uses it, it is said": {pod: boundPod(has), entries: map[string]pool.Entry{has: {}, claimed: mine}, used: map[string]string{has: "db/web-1"}, evicted: true,
			told: "IP 10.0.1.1 on node n is still in use by pod db/web-1; it was evicted to start again with its own"},
		"another runs with it": {pod: boundPod(has), entries: map[string]pool.Entry{has: {}, claimed: mine}, cached: beside(has), stored: beside(has), evicted: true,
			told: "10.0.1.1 is what pod db/web-1 runs with; it was evicted to start again with its own"},
		"another ran with it":    {pod: boundPod(has), entries: map[string]pool.Entry{has: {}, claimed: mine}, cached: beside(has), later: time.Second},
		"another has got other":  {pod: boundPod(has), entries: map[string]pool.Entry{has: {}, claimed: mine}, cached: beside(has), stored: beside("10.0.1.7"), later: time.Second},
		"the agent may see it":   {pod: boundPod(has, young), entries: map[string]pool.Entry{has: theirs, claimed: mine}, later: 15 * time.Second},
		"not by its policy":      {pod: boundPod(has, reports), entries: map[string]pool.Entry{has: theirs, claimed: mine}, told: "IP 10.0.1.1 on node n belongs to pod db/web-1; delete the pod, and it will get its own"},
		"not against its budget": {pod: boundPod(has), entries: map[string]pool.Entry{has: theirs, claimed: mine}, refused: true, later: blockedRetry, told: "IP 10.0.1.1 on node n belongs to pod db/web-1; it can't be restarted now: the eviction was refused: one has to run"},
	} {
		t.Run(name, func(t *testing.T) {
			api, cached := objects(c.pod.DeepCopy()), objects(c.pod.DeepCopy())
			if c.cached != nil {
				cached = append(cached, c.cached)
			}
			if c.stored != nil {
				api = append(api, c.stored)
			}
			s := newStage(t, api, cached)
			s.fill(c.entries, c.used)
			want := s.poolOwners()
			r := s.verifies()
			r.restarter.live = interceptor.NewClient(s.api, interceptor.Funcs{SubResourceCreate: func(ctx context.Context, api client.Client, name string, obj, sub client.Object, opts ...client.SubResourceCreateOption) error {
				if c.refused {
					return apierrors.NewTooManyRequests("one has to run", 0)
				}
				return api.SubResource(name).Create(ctx, obj, sub, opts...)
			}})
			result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(c.pod)})
			if err != nil || result.RequeueAfter != c.later {
				t.Errorf("again after %v, want %v: %v", result.RequeueAfter, c.later, err)
			}
			var now corev1.Pod
			if evicted := s.api.Get(t.Context(), client.ObjectKeyFromObject(c.pod), &now) != nil; evicted != c.evicted {
				t.Errorf("evicted: %v", evicted)
			}
			if diff := cmp.Diff(want, s.poolOwners()); diff != "" {
				t.Errorf("entries (-want +got): %s", diff)
			}
			var told []string
			if c.told != "" {
				told = []string{"Warning AddressTaken It runs with another address than was claimed for it, which can't be kept: " + c.told}
			}
			if diff := cmp.Diff(told, s.told()); diff != "" {
				t.Errorf("events (-want +got): %s", diff)
			}
		})
	}
}
