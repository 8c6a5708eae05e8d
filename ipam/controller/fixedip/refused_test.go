// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"context"
	"errors"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/test/controllertest"
)

// TestRefusedFixedIP checks that, if a quota refuses a FixedIP, the pod gets an event, the pool entry stays unchanged, and
// the controller retries until the quota allows the FixedIP (finding R4 in docs/project/findings.md).
func TestRefusedFixedIP(t *testing.T) {
	web := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "web", UID: "web-1"}, Spec: appsv1.StatefulSetSpec{Replicas: ptr.To[int32](3)}}
	pod := controllertest.Pod(0)
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "web", UID: "web-1", Controller: ptr.To(true)}}
	pod.Status.Phase, pod.Status.PodIPs = corev1.PodRunning, []corev1.PodIP{{IP: controllertest.IP(0)}}
	objects := controllertest.Objects(web, pod)
	s := newStage(t, objects, objects)
	refused := true
	s.fixedips.Live = interceptor.NewClient(s.API, interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
		if refused {
			return apierrors.NewForbidden(v1alpha1.GroupVersion.WithResource("fixedips").GroupResource(), o.GetName(), errors.New("exceeded quota: addresses"))
		}
		return c.Create(ctx, o, opts...)
	}})
	before := s.Owners()
	for range 2 {
		result, err := s.fixedips.Reconcile(t.Context(), source.ForOwner("db/web-0")[0])
		if err != nil || result.RequeueAfter != whileRefused {
			t.Errorf("got RequeueAfter %v and error %v, want %v and no error", result.RequeueAfter, err, whileRefused)
		}
		if !s.Event("FixedIPRefused") {
			t.Error("no event FixedIPRefused was recorded")
		}
	}
	if now := s.Owners(); now != before {
		t.Errorf("got owners %s after the refusal, want %s as before", now, before)
	}
	refused = false
	if _, err := s.fixedips.Reconcile(t.Context(), source.ForOwner("db/web-0")[0]); err != nil {
		t.Fatal(err)
	}
	if err := s.API.Get(t.Context(), client.ObjectKey{Namespace: "db", Name: "web-0"}, &v1alpha1.FixedIP{}); err != nil {
		t.Errorf("the FixedIP was not created after the quota allowed it: %v", err)
	}
}
