// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"errors"
	"net/netip"
	"testing"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/controller/internal/gather"
	"fixedip.io/fixedip/ipam/core/agentview"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reclaim"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/test/controllertest"
)

// TestAdoptionOfAPodThatGoes checks that a dynamic entry is withdrawn for a pod only while the pod runs with the IP. If
// the pod is deleted before the write, nothing is written. If the pod is deleted or replaced or fails during the write,
// the write is undone, and the entry is dynamic again (finding C12 in docs/project/findings.md).
func TestAdoptionOfAPodThatGoes(t *testing.T) {
	const has = "10.0.1.1"
	remove := func(s *stage, pod *corev1.Pod) error { return s.API.Delete(t.Context(), pod) }
	for name, c := range map[string]struct {
		// before and during change the pod at the API server before the write and during the write; nil: no change.
		before, during func(*stage, *corev1.Pod) error
		patches        int
		// owner is the owner of the entry after the write.
		owner string
	}{
		"the pod does not change":             {patches: 1, owner: controllertest.Cooldown},
		"the pod is deleted before the write": {before: remove},
		"the pod is deleted during the write": {during: remove, patches: 2},
		"the pod is replaced during the write": {during: func(s *stage, pod *corev1.Pod) error {
			next := pod.DeepCopy()
			next.UID, next.ResourceVersion = "next", ""
			return errors.Join(s.API.Delete(t.Context(), pod), s.API.Create(t.Context(), next))
		}, patches: 2},
		"the pod fails during the write": {during: func(s *stage, pod *corev1.Pod) error {
			pod.Status.Phase = corev1.PodFailed
			return s.API.Status().Update(t.Context(), pod)
		}, patches: 2},
	} {
		t.Run(name, func(t *testing.T) {
			pod := controllertest.Pod(0)
			pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: has}}}
			s := newStage(t, controllertest.Objects(pod.DeepCopy()), controllertest.Objects(pod.DeepCopy()))
			var node ciliumv2.CiliumNode
			if err := s.API.Get(t.Context(), client.ObjectKey{Name: "n"}, &node); err != nil {
				t.Fatal(err)
			}
			node.Status.IPAM.Used = ipamtypes.AllocationMap{has: {Owner: "db/web-0"}}
			if err := s.API.Update(t.Context(), &node); err != nil {
				t.Fatal(err)
			}
			apply := func(change func(*stage, *corev1.Pod) error) {
				var now corev1.Pod
				if change == nil {
					return
				}
				err := s.API.Get(t.Context(), client.ObjectKeyFromObject(pod), &now)
				if err == nil {
					err = change(s, &now)
				}
				if err != nil {
					t.Error(err)
				}
			}
			s.OnPatch = func() (func(), error) {
				s.OnPatch = nil
				return func() { apply(c.during) }, nil
			}
			apply(c.before)
			record := controllertest.Record(0, false)
			record.Spec.IPs = []string{has}
			err := s.fixedips.allocate(t.Context(), reclaim.State{Record: record, Pod: pod}, reclaim.Action{Type: reclaim.Withdraw, Node: "n", Addrs: []netip.Addr{netip.MustParseAddr(has)}}, agentview.Evidence{})
			if withdrawn := c.owner != ""; errors.Is(err, gather.ErrSuperseded) == withdrawn || withdrawn && err != nil {
				t.Errorf("Withdraw: got error %v, want no error: %t, otherwise ErrSuperseded", err, withdrawn)
			}
			if err := s.API.Get(t.Context(), client.ObjectKey{Name: "n"}, &node); err != nil {
				t.Fatal(err)
			}
			if owner := node.Spec.IPAM.Pool[has].Owner; owner != c.owner || s.Patches != c.patches {
				t.Errorf("got owner %q after %d patches, want %q after %d", owner, s.Patches, c.owner, c.patches)
			}
		})
	}
}

// TestDeletedDuringAllocation checks that a FixedIP that is deleted while its entries are written keeps its finalizer
// until the entries are released: the ledger contains the controller's own write before the watch shows it. Otherwise
// the entry of the deleted FixedIP would stay in the pool, and the next pod of that name would wait forever for the
// node with that entry.
func TestDeletedDuringAllocation(t *testing.T) {
	record := controllertest.Record(3, false)
	workload := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "web", UID: "web-1"}, Spec: appsv1.StatefulSetSpec{Replicas: ptr.To[int32](4)}}
	s := newStage(t, controllertest.Objects(record.DeepCopy(), workload.DeepCopy()), controllertest.Objects(record.DeepCopy(), workload.DeepCopy()))
	var node ciliumv2.CiliumNode
	if err := s.API.Get(t.Context(), client.ObjectKey{Name: "n"}, &node); err != nil {
		t.Fatal(err)
	}
	node.Status.IPAM.Used = ipamtypes.AllocationMap{"10.0.1.1": {Owner: "router"}}
	if err := s.API.Update(t.Context(), &node); err != nil {
		t.Fatal(err)
	}
	s.Ledger.SetNode(ciliumpool.FromCiliumNode(&node))
	// Package controller sets OnPool in the same way.
	s.Writer.OnPool = func(n pool.NodePool) { s.Ledger.ObserveWrite(n) }
	s.OnPatch = func() (func(), error) {
		s.OnPatch = nil
		return func() {
			for _, objects := range []client.Client{s.API, s.Cached} {
				if err := objects.Delete(t.Context(), record.DeepCopy()); err != nil {
					t.Error(err)
				}
			}
		}, nil
	}
	key := client.ObjectKeyFromObject(record)
	for range 3 {
		if _, err := s.fixedips.Reconcile(t.Context(), ctrl.Request{NamespacedName: key}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.API.Get(t.Context(), client.ObjectKey{Name: "n"}, &node); err != nil {
		t.Fatal(err)
	}
	if owner := node.Spec.IPAM.Pool[controllertest.IP(3)].Owner; owner != "db/web-3" {
		t.Fatalf("got the owner %q of the entry of the FixedIP, want db/web-3", owner)
	}
	if err := s.API.Get(t.Context(), key, record); err != nil {
		t.Errorf("get the FixedIP, whose entry is not released yet: %v", err)
	}
}
