// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/core/plan"
	"fixedip.io/fixedip/ipam/core/pool"
)

// Finding C12. A dynamic entry becomes the pod's own only while the pod runs with the IP. If the pod is gone before the
// write, nothing is written; if it goes during the write, the entry is dynamic again.
func TestAdoptionOfAPodThatGoes(t *testing.T) {
	const has, owner = "10.0.1.1", "db/web-0"
	for name, c := range map[string]struct {
		// before and during are what happens to the pod at the API server before the write and during it.
		before, during func(*stage, *corev1.Pod) error
		patches        int
		owned          bool
	}{
		"it runs on":      {patches: 1, owned: true},
		"it had gone":     {before: func(s *stage, pod *corev1.Pod) error { return s.api.Delete(t.Context(), pod) }},
		"it goes":         {during: func(s *stage, pod *corev1.Pod) error { return s.api.Delete(t.Context(), pod) }, patches: 2},
		"another follows": {during: replacePod, patches: 2},
		"it fails": {during: func(s *stage, pod *corev1.Pod) error {
			pod.Status.Phase = corev1.PodFailed
			return s.api.Status().Update(t.Context(), pod)
		}, patches: 2},
	} {
		t.Run(name, func(t *testing.T) {
			pod := podOf(0)
			pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: has}}}
			s := newStage(t, objects(pod.DeepCopy()), objects(pod.DeepCopy()))
			s.fill(map[string]pool.Entry{has: {}}, nil)
			s.syncLedger()
			want := s.poolOwners()
			if c.owned {
				want[has] = owner
			}
			record := recordOf(0, false)
			record.Spec.IPs = []string{has}
			happen := func(what func(*stage, *corev1.Pod) error) {
				var now corev1.Pod
				if what == nil {
					return
				}
				err := s.api.Get(t.Context(), client.ObjectKeyFromObject(pod), &now)
				if err == nil {
					err = what(s, &now)
				}
				if err != nil {
					t.Error(err)
				}
			}
			s.onPatch = func() (func(), error) {
				s.onPatch = nil
				return func() { happen(c.during) }, nil
			}
			happen(c.before)
			err := s.records.project(t.Context(), plan.Situation{Record: record, Pod: pod}, plan.Next{Step: plan.ProjectEntries, Node: "n", Addrs: []netip.Addr{netip.MustParseAddr(has)}})
			if errors.Is(err, errSuperseded) == c.owned || c.owned && err != nil {
				t.Errorf("project: %v", err)
			}
			if diff := cmp.Diff(want, s.poolOwners()); diff != "" || s.patches != c.patches {
				t.Errorf("%d patches, want %d; entries (-want +got): %s", s.patches, c.patches, diff)
			}
		})
	}
}

func replacePod(s *stage, pod *corev1.Pod) error {
	next := pod.DeepCopy()
	next.UID, next.ResourceVersion = "next", ""
	return errors.Join(s.api.Delete(s.t.Context(), pod), s.api.Create(s.t.Context(), next))
}
