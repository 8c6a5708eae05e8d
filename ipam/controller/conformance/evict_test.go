// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/gather"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/core/conformance"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/scheme"
)

var start = time.Unix(10000, 0)

// evictStage is a cluster whose pods are evicted.
type evictStage struct {
	t       *testing.T
	api     client.WithWatch
	clock   *clocktesting.FakeClock
	evictor *Controller
	evicted []string
	// during is called while an eviction is under way; its error is the answer of the API server.
	during func() error
}

// threeReplicas returns every workload that is read, with three replicas.
type threeReplicas struct{ gather.Workloads }

func (threeReplicas) Get(gk schema.GroupKind, _, name string) (*identity.Workload, error) {
	return &identity.Workload{GroupKind: gk, Name: name, Replicas: ptr.To[int32](3)}, nil
}

func podOf(workload, name string, ready bool) *corev1.Pod {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"of": workload}},
		Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}},
	}
}

// mismatchedRecord returns the FixedIP of a pod. restarting is how long ago the pod was evicted; zero: it was not.
func mismatchedRecord(workload, name string, restarting time.Duration) *v1alpha1.FixedIP {
	r := &v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: name}, Spec: v1alpha1.FixedIPSpec{
		PodName: name, Owner: v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: workload},
	}}
	if restarting > 0 {
		r.Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.ConditionMismatch, Status: metav1.ConditionTrue, Reason: conformance.ReasonRestarting, LastTransitionTime: metav1.NewTime(start.Add(-restarting)),
		}}
	}
	return r
}

func newEvictStage(t *testing.T, atOnce int, objects ...client.Object) *evictStage {
	t.Helper()
	kinds, err := scheme.New()
	if err != nil {
		t.Fatal(err)
	}
	s := &evictStage{t: t, clock: clocktesting.NewFakeClock(start)}
	b := fake.NewClientBuilder().WithScheme(kinds).WithObjects(objects...).WithIndex(&v1alpha1.FixedIP{}, restartingIndex, restarting)
	_ = index.Each(func(of client.Object, name string, fn client.IndexerFunc) error {
		b = b.WithIndex(of, name, fn)
		return nil
	})
	s.api = b.WithInterceptorFuncs(interceptor.Funcs{SubResourceCreate: func(_ context.Context, _ client.Client, name string, obj, sub client.Object, _ ...client.SubResourceCreateOption) error {
		if uid := sub.(*policyv1.Eviction).DeleteOptions.Preconditions.UID; name != "eviction" || *uid != obj.GetUID() {
			t.Errorf("%s of %s with precondition %s", name, obj.GetUID(), *uid)
		}
		if s.during != nil {
			if err := s.during(); err != nil {
				return err
			}
		}
		s.evicted = append(s.evicted, obj.GetName())
		return nil
	}}).Build()
	s.evictor = &Controller{
		Gatherer: &gather.Gatherer{Cached: s.api, Live: s.api, Clock: s.clock, Workloads: threeReplicas{}},
		Config:   Config{Restarts: atOnce, RestartAfter: 20 * time.Second},
	}
	return s
}

func (s *evictStage) evict(workload, name string, ready bool) (time.Duration, error) {
	pod := podOf(workload, name, ready)
	return s.evictor.evict(s.t.Context(), client.ObjectKeyFromObject(pod), identity.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Name: workload}, pod)
}

func (s *evictStage) is(what string, later, wantLater time.Duration, err error, want ...string) {
	s.t.Helper()
	if err != nil || later != wantLater || !slices.Equal(s.evicted, want) {
		s.t.Fatalf("%s: later %v (want %v), %v; evicted %v, want %v", what, later, wantLater, err, s.evicted, want)
	}
}

// TestBudget checks the number of restarts in progress, which are those that the FixedIPs show and those begun since, and
// the growing interval between two evictions of one pod.
func TestBudget(t *testing.T) {
	// Another replica evicted other-0 four minutes ago.
	s := newEvictStage(t, 2, mismatchedRecord("other", "other-0", 4*time.Minute))
	later, err := s.evict("a", "a-0", true)
	s.is("the second of two", later, 0, err, "a-0")
	later, err = s.evict("b", "b-0", true)
	s.is("one too many", later, 5*time.Second, err, "a-0")
	later, err = s.evict("a", "a-0", true)
	s.is("the same again at once", later, 20*time.Second, err, "a-0")
	s.clock.Step(20 * time.Second)
	later, err = s.evict("a", "a-0", true)
	s.is("the same again", later, 0, err, "a-0", "a-0")
	later, err = s.evict("a", "a-0", true)
	s.is("and once more, not so soon", later, 40*time.Second, err, "a-0", "a-0")
	s.evictor.evictionDone(types.NamespacedName{Namespace: "db", Name: "a-0"})
	later, err = s.evict("b", "b-0", true)
	s.is("when one is done", later, 0, err, "a-0", "a-0", "b-0")
	s.clock.Step(6 * time.Minute)
	later, err = s.evict("c", "c-0", true)
	s.is("when the other replica's has taken too long", later, 0, err, "a-0", "a-0", "b-0", "c-0")
}

func TestBlockedByBudget(t *testing.T) {
	s := newEvictStage(t, 2)
	s.during = func() error {
		err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
		err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Message: "The disruption budget guard needs 1 healthy pods and has 1 currently"})
		return err
	}
	if _, err := s.evict("d", "d-0", true); !errors.Is(err, errBlocked) || !strings.Contains(err.Error(), "The disruption budget guard needs 1 healthy pods") {
		t.Fatalf("refused: %v", err)
	}
	s.during = nil
	later, err := s.evict("d", "d-0", true)
	s.is("right after it was refused", later, 30*time.Second, err)
	later, err = s.evict("e", "e-0", true)
	s.is("a refused one is not in progress", later, 0, err, "e-0")
	s.clock.Step(30 * time.Second)
	later, err = s.evict("d", "d-0", true)
	s.is("later", later, 0, err, "e-0", "d-0")
}

// TestOneMemberOfAWorkloadAtATime checks that one member of a workload restarts at a time, and the next only once the
// evicted pod is ready again. Finding C5.
func TestOneMemberOfAWorkloadAtATime(t *testing.T) {
	var objects []client.Object
	for _, name := range []string{"db-0", "db-1", "db-2"} {
		objects = append(objects, mismatchedRecord("db", name, 0), podOf("db", name, true))
	}
	// The workload has three replicas: db-3 was scaled down and does not count.
	objects = append(objects, mismatchedRecord("db", "db-3", 0))
	s := newEvictStage(t, 5, objects...)
	set := func(name string, ready bool) {
		t.Helper()
		if err := s.api.Delete(t.Context(), podOf("db", name, ready)); client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
		if err := s.api.Create(t.Context(), podOf("db", name, ready)); err != nil {
			t.Fatal(err)
		}
	}
	later, err := s.evict("db", "db-0", true)
	s.is("the first", later, 0, err, "db-0")
	later, err = s.evict("db", "db-1", true)
	s.is("while the first is restarting", later, 5*time.Second, err, "db-0")
	later, err = s.evict("web", "web-0", true)
	s.is("of another workload", later, 0, err, "db-0", "web-0")

	// db-0 runs with its own IP, and is not ready.
	s.evictor.evictionDone(types.NamespacedName{Namespace: "db", Name: "db-0"})
	set("db-0", false)
	later, err = s.evict("db", "db-1", true)
	s.is("while the first is not ready", later, 5*time.Second, err, "db-0", "web-0")
	if err := s.api.Delete(t.Context(), podOf("db", "db-0", false)); err != nil {
		t.Fatal(err)
	}
	later, err = s.evict("db", "db-1", true)
	s.is("while the first does not exist", later, 5*time.Second, err, "db-0", "web-0")
	set("db-0", true)
	later, err = s.evict("db", "db-1", true)
	s.is("when the first is ready", later, 0, err, "db-0", "web-0", "db-1")

	// The eviction of a pod that is not ready takes no ready member from its workload.
	s.evictor.evictionDone(types.NamespacedName{Namespace: "db", Name: "db-1"})
	set("db-0", false)
	set("db-1", false)
	later, err = s.evict("db", "db-2", false)
	s.is("a pod that is not ready", later, 0, err, "db-0", "web-0", "db-1", "db-2")
}

// TestSlowEvictionBlocksNoOther checks that a slow eviction does not block another one. Finding C12.
func TestSlowEvictionBlocksNoOther(t *testing.T) {
	s := newEvictStage(t, 5)
	s.during = func() error {
		s.during = nil
		_, err := s.evict("b", "b-0", true)
		return err
	}
	later, err := s.evict("a", "a-0", true)
	s.is("one during the other", later, 0, err, "b-0", "a-0")
}
