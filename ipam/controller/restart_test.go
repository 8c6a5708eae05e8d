// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/plan"
	"fixedip.io/fixedip/ipam/scheme"
)

// How many restarts are under way is what the FixedIPs say and what was begun since; how often one
// is repeated, time says.
func TestRestarter(t *testing.T) {
	kinds, err := scheme.New()
	if err != nil {
		t.Fatal(err)
	}
	start := time.Unix(10000, 0)
	clock := clocktesting.NewFakeClock(start)
	// By another replica, 4 minutes ago.
	record := &v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "other-0"}}
	record.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.ConditionMismatch, Status: metav1.ConditionTrue, Reason: plan.ReasonRestarting, LastTransitionTime: metav1.NewTime(start.Add(-4 * time.Minute)),
	}}
	var evicted []string
	refuse := false
	api := fake.NewClientBuilder().WithScheme(kinds).WithObjects(record).
		WithIndex(&v1alpha1.FixedIP{}, restartingIndex, restarting).
		WithInterceptorFuncs(interceptor.Funcs{SubResourceCreate: func(_ context.Context, _ client.Client, name string, obj, sub client.Object, _ ...client.SubResourceCreateOption) error {
			if uid := sub.(*policyv1.Eviction).DeleteOptions.Preconditions.UID; name != "eviction" || *uid != obj.GetUID() {
				t.Errorf("%s of %s with precondition %s", name, obj.GetUID(), *uid)
			}
			if refuse {
				err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
				err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Message: "The disruption budget guard needs 1 healthy pods and has 1 currently"})
				return err
			}
			evicted = append(evicted, obj.GetName())
			return nil
		}}).Build()
	r := newRestarter(api, api, clock, VerifyConfig{Restarts: 2, RestartAfter: 20 * time.Second})
	restart := func(name string) (time.Duration, error) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: name, UID: types.UID("uid-" + name)}}
		return r.restart(t.Context(), client.ObjectKeyFromObject(pod), pod)
	}
	is := func(what string, later, wantLater time.Duration, err error, want ...string) {
		t.Helper()
		if err != nil || later != wantLater || strings.Join(evicted, " ") != strings.Join(want, " ") {
			t.Fatalf("%s: later %v (want %v), %v; evicted %v, want %v", what, later, wantLater, err, evicted, want)
		}
	}
	later, err := restart("a-0")
	is("the second of two", later, 0, err, "a-0")
	later, err = restart("b-0")
	is("one too many", later, 5*time.Second, err, "a-0")
	later, err = restart("a-0")
	is("the same again at once", later, 20*time.Second, err, "a-0")
	clock.Step(20 * time.Second)
	later, err = restart("a-0")
	is("the same again", later, 0, err, "a-0", "a-0")
	later, err = restart("a-0")
	is("and once more, not so soon", later, 40*time.Second, err, "a-0", "a-0")
	r.done(types.NamespacedName{Namespace: "db", Name: "a-0"})
	later, err = restart("b-0")
	is("when one is done", later, 0, err, "a-0", "a-0", "b-0")
	clock.Step(6 * time.Minute)
	later, err = restart("c-0")
	is("when the other replica's has taken too long", later, 0, err, "a-0", "a-0", "b-0", "c-0")
	clock.Step(10 * time.Minute)

	refuse = true
	if _, err = restart("d-0"); !errors.Is(err, errBlocked) || !strings.Contains(err.Error(), "The disruption budget guard needs 1 healthy pods") {
		t.Fatalf("refused: %v", err)
	}
	refuse = false
	later, err = restart("d-0")
	is("right after it was refused", later, 30*time.Second, err, "a-0", "a-0", "b-0", "c-0")
	later, err = restart("e-0")
	is("a refused one is not under way", later, 0, err, "a-0", "a-0", "b-0", "c-0", "e-0")
	clock.Step(30 * time.Second)
	later, err = restart("d-0")
	is("later", later, 0, err, "a-0", "a-0", "b-0", "c-0", "e-0", "d-0")
}
