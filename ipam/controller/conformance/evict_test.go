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
	"fixedip.io/fixedip/test/gen"
)

var start = time.Unix(10000, 0)

// evictStage is a Controller with a fake API server that records evictions.
type evictStage struct {
	t       *testing.T
	api     client.WithWatch
	clock   *clocktesting.FakeClock
	evictor *Controller
	evicted []string
	// during, if it is not nil, is called while an eviction is under way; its error is the response of the API server.
	during func() error
}

// threeReplicas is a gather.Workloads in which every workload exists and has three replicas.
type threeReplicas struct{ gather.Workloads }

func (threeReplicas) Get(gk schema.GroupKind, _, name string) (*identity.Workload, error) {
	return &identity.Workload{GroupKind: gk, Name: name, Replicas: ptr.To[int32](3)}, nil
}

func podOf(workload, name string, ready bool) *corev1.Pod {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	return gen.Pod(name, func(p *corev1.Pod) {
		p.Labels = map[string]string{"of": workload}
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}
	})
}

// mismatchedRecord returns the FixedIP of a pod. restarting is the time since the eviction of the pod; zero: the pod was not
// evicted.
func mismatchedRecord(workload, name string, restarting time.Duration) *v1alpha1.FixedIP {
	r := gen.FixedIP(name, gen.Owner(workload))
	if restarting > 0 {
		r.Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.ConditionAsReserved, Status: metav1.ConditionFalse, Reason: conformance.ReasonRestarting, LastTransitionTime: metav1.NewTime(start.Add(-restarting)),
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
			t.Errorf("got a request for subresource %q of pod %s with UID precondition %s, want an eviction with the UID of the pod", name, obj.GetUID(), *uid)
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

// want checks the results of evict and the names of the pods that were evicted so far. step describes the call of evict.
func (s *evictStage) want(step string, later, wantLater time.Duration, err error, evicted ...string) {
	s.t.Helper()
	if err != nil || later != wantLater || !slices.Equal(s.evicted, evicted) {
		s.t.Fatalf("%s: got later = %v, error %v and evicted pods %v; want %v, no error and %v", step, later, err, s.evicted, wantLater, evicted)
	}
}

// TestBudget checks the limit for the restarts in progress, and the growing interval between two evictions of one
// pod. The restarts in progress are those that the FixedIPs show and those begun since.
func TestBudget(t *testing.T) {
	// Another replica evicted other-0 four minutes ago.
	s := newEvictStage(t, 2, mismatchedRecord("other", "other-0", 4*time.Minute))
	later, err := s.evict("a", "a-0", true)
	s.want("a-0, one restart of two is in progress", later, 0, err, "a-0")
	later, err = s.evict("b", "b-0", true)
	s.want("b-0, two restarts of two are in progress", later, 5*time.Second, err, "a-0")
	later, err = s.evict("a", "a-0", true)
	s.want("a-0 again at once", later, 20*time.Second, err, "a-0")
	s.clock.Step(20 * time.Second)
	later, err = s.evict("a", "a-0", true)
	s.want("a-0 again after 20s", later, 0, err, "a-0", "a-0")
	later, err = s.evict("a", "a-0", true)
	s.want("a-0 for the third time", later, 40*time.Second, err, "a-0", "a-0")
	s.evictor.evictionDone(types.NamespacedName{Namespace: "db", Name: "a-0"})
	later, err = s.evict("b", "b-0", true)
	s.want("b-0, after the restart of a-0 is done", later, 0, err, "a-0", "a-0", "b-0")
	s.clock.Step(6 * time.Minute)
	later, err = s.evict("c", "c-0", true)
	s.want("c-0, after the restart of other-0 has timed out", later, 0, err, "a-0", "a-0", "b-0", "c-0")
}

func TestBlockedByBudget(t *testing.T) {
	s := newEvictStage(t, 2)
	s.during = func() error {
		err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
		err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Message: "The disruption budget guard needs 1 healthy pods and has 1 currently"})
		return err
	}
	if _, err := s.evict("d", "d-0", true); !errors.Is(err, errBlocked) || !strings.Contains(err.Error(), "The disruption budget guard needs 1 healthy pods") {
		t.Fatalf("got error %v, want errBlocked with the name of the budget", err)
	}
	s.during = nil
	later, err := s.evict("d", "d-0", true)
	s.want("d-0 right after the refusal", later, 30*time.Second, err)
	later, err = s.evict("e", "e-0", true)
	s.want("e-0, no restart is in progress", later, 0, err, "e-0")
	s.clock.Step(30 * time.Second)
	later, err = s.evict("d", "d-0", true)
	s.want("d-0, 30s after the refusal", later, 0, err, "e-0", "d-0")
}

// TestOneMemberOfAWorkloadAtATime checks that one member of a workload restarts at a time. A ready member is evicted only while
// all other members are ready. A member that is not ready is evicted even if another member is not ready. Finding C5.
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
	s.want("db-0", later, 0, err, "db-0")
	later, err = s.evict("db", "db-1", true)
	s.want("db-1 while db-0 is restarting", later, 5*time.Second, err, "db-0")
	later, err = s.evict("web", "web-0", true)
	s.want("web-0 of another workload", later, 0, err, "db-0", "web-0")

	// db-0 runs with its reserved IPs, and is not ready.
	s.evictor.evictionDone(types.NamespacedName{Namespace: "db", Name: "db-0"})
	set("db-0", false)
	later, err = s.evict("db", "db-1", true)
	s.want("db-1 while db-0 is not ready", later, 5*time.Second, err, "db-0", "web-0")
	if err := s.api.Delete(t.Context(), podOf("db", "db-0", false)); err != nil {
		t.Fatal(err)
	}
	later, err = s.evict("db", "db-1", true)
	s.want("db-1 while db-0 does not exist", later, 5*time.Second, err, "db-0", "web-0")
	set("db-0", true)
	later, err = s.evict("db", "db-1", true)
	s.want("db-1 when db-0 is ready", later, 0, err, "db-0", "web-0", "db-1")

	// Evicting a pod that is not ready leaves the number of ready members of the workload unchanged.
	s.evictor.evictionDone(types.NamespacedName{Namespace: "db", Name: "db-1"})
	set("db-0", false)
	set("db-1", false)
	later, err = s.evict("db", "db-2", false)
	s.want("db-2, which is not ready", later, 0, err, "db-0", "web-0", "db-1", "db-2")
}

// TestEndedPodOfASlot checks that a pod that has ended, and that the FixedIP of a slot still names, does not delay the eviction of
// another pod of the workload.
func TestEndedPodOfASlot(t *testing.T) {
	for phase, wantLater := range map[corev1.PodPhase]time.Duration{corev1.PodFailed: 0, corev1.PodRunning: 5 * time.Second} {
		slot := mismatchedRecord("db", "db-x", 0)
		slot.Spec.AssignedTo, slot.Status = v1alpha1.Slot, v1alpha1.FixedIPStatus{}
		other := podOf("db", "db-x", false)
		other.Status.Phase = phase
		s := newEvictStage(t, 5, slot, other)
		later, err := s.evict("db", "db-y", true)
		var evicted []string
		if wantLater == 0 {
			evicted = []string{"db-y"}
		}
		s.want("db-y, db-x is "+string(phase), later, wantLater, err, evicted...)
	}
}

// TestSlowEvictionBlocksNoOther checks that a pod can be evicted while the eviction of another pod is under way. Finding C12.
func TestSlowEvictionBlocksNoOther(t *testing.T) {
	s := newEvictStage(t, 5)
	s.during = func() error {
		s.during = nil
		_, err := s.evict("b", "b-0", true)
		return err
	}
	later, err := s.evict("a", "a-0", true)
	s.want("a-0, with the eviction of b-0 meanwhile", later, 0, err, "b-0", "a-0")
}
