// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/gather"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/test/controllertest"
)

// stage has a Controller whose batch for node n contains the identities of the three pods.
type stage struct {
	*controllertest.Stage
	t       *testing.T
	release *Controller
}

func newStage(t *testing.T, api, cached []client.Object) *stage {
	t.Helper()
	s := &stage{Stage: controllertest.New(t, index.Each, api, cached), t: t}
	s.release = &Controller{
		Gatherer: &gather.Gatherer{
			Ledger: s.Ledger, Cached: s.Cached, Live: s.API, Workloads: s, Kinds: identity.NewKinds(), Events: s.Recorder, Clock: s.Clock,
			Deadline: 10 * time.Minute,
		},
		Batches: &Batches{Clock: s.Clock}, Writer: s.Writer, Again: &source.Requests{},
	}
	for i := range 3 {
		s.release.Batches.Add("n", key(i))
	}
	return s
}

func key(i int) types.NamespacedName { return client.ObjectKeyFromObject(controllertest.Pod(i)) }

// reconcile reconciles node n until it is not requeued, and advances the clock by each requeue delay.
func (s *stage) reconcile() error {
	for {
		result, err := s.release.Reconcile(s.t.Context(), source.ForName("n"))
		if err != nil || result.RequeueAfter == 0 {
			return err
		}
		s.Clock.Step(result.RequeueAfter)
	}
}

func TestRelease(t *testing.T) {
	workload := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "web", UID: "web-2"}}
	standing := controllertest.Objects(controllertest.Record(0, false), controllertest.Record(1, false), controllertest.Record(2, false))
	deleted := controllertest.Objects(controllertest.Record(0, true), controllertest.Record(1, true), controllertest.Record(2, true))
	anew := controllertest.Record(0, false)
	anew.UID = "another"
	running := controllertest.Pod(1)
	running.Status.PodIPs = []corev1.PodIP{{IP: "10.0.1.1"}}
	for name, c := range map[string]struct {
		api, cached []client.Object
		want        string
		patches     int
	}{
		"all of a deleted workload in one write": {standing, standing, controllertest.Cooldown + " " + controllertest.Cooldown + " " + controllertest.Cooldown, 1},
		"all deleted records in one write":       {deleted, deleted, controllertest.Cooldown + " " + controllertest.Cooldown + " " + controllertest.Cooldown, 1},
		"some deleted, some to be":               {controllertest.Objects(controllertest.Record(0, true), controllertest.Record(1, false)), controllertest.Objects(controllertest.Record(0, true), controllertest.Record(1, false)), controllertest.Cooldown + " " + controllertest.Cooldown + " db/web-2", 1},
		// The caches are behind in each of these.
		"the workload is back":               {append(controllertest.Objects(workload), standing...), standing, "db/web-0 db/web-1 db/web-2", 0},
		"a pod is back":                      {append(controllertest.Objects(controllertest.Pod(1)), standing...), standing, controllertest.Cooldown + " db/web-1 " + controllertest.Cooldown, 1},
		"a pod is back, of a deleted record": {append(controllertest.Objects(controllertest.Pod(1)), deleted...), deleted, controllertest.Cooldown + " db/web-1 " + controllertest.Cooldown, 1},
		"and runs with another address":      {append(controllertest.Objects(running), deleted...), deleted, controllertest.Cooldown + " " + controllertest.Cooldown + " " + controllertest.Cooldown, 1},
		"a FixedIP was created again":        {controllertest.Objects(anew, controllertest.Record(1, true), controllertest.Record(2, true)), deleted, "db/web-0 " + controllertest.Cooldown + " " + controllertest.Cooldown, 1},
		"the records are gone":               {nil, deleted, "db/web-0 db/web-1 db/web-2", 0},
		"nothing is to be released":          {append(controllertest.Objects(workload), standing...), append(controllertest.Objects(workload), standing...), "db/web-0 db/web-1 db/web-2", 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, c.api, c.cached)
			if err := s.reconcile(); err != nil {
				t.Fatal(err)
			}
			if s.Reads > 0 {
				t.Errorf("the CiliumNode was read %d times, and no pod came that would have its entry restored", s.Reads)
			}
			if got := s.Owners(); got != c.want || s.Patches != c.patches {
				t.Errorf("after %d writes the owners are %s; want %s after %d", s.Patches, got, c.want, c.patches)
			}
			// A workload that exists is read again for each of its three pods.
			most := 1
			if slices.Contains(c.api, client.Object(workload)) {
				most = 4
			}
			if s.Looks > most {
				t.Errorf("one workload was looked at %d times, want %d at most", s.Looks, most)
			}
		})
	}
}

// TestF2PodComesDuringTheRelease checks that an entry is restored if its pod is bound after the live decision and before
// the confirmation (F2 and F17).
func TestF2PodComesDuringTheRelease(t *testing.T) {
	records := controllertest.Objects(controllertest.Record(0, true), controllertest.Record(1, true), controllertest.Record(2, true))
	s := newStage(t, records, records)
	came := false
	s.OnPatch = func() (func(), error) {
		return func() {
			if came {
				return
			}
			came = true
			if !s.release.Batches.InFlight(key(1)) {
				t.Error("its FixedIP may be removed before the write is confirmed")
			}
			if err := s.API.Create(t.Context(), controllertest.Pod(1)); err != nil {
				t.Fatal(err)
			}
		}, nil
	}
	if err := s.reconcile(); err != nil {
		t.Fatal(err)
	}
	if got, want := s.Owners(), controllertest.Cooldown+" db/web-1 "+controllertest.Cooldown; got != want {
		t.Errorf("the owners are %s, want %s", got, want)
	}
	if s.release.Batches.InFlight(key(1)) {
		t.Error("its FixedIP stays for ever")
	}
}

// TestOptedOutPodComesDuringTheRelease checks that an address stays released if a pod of its name that opted out is bound
// as soon as the entry is released: that pod does not get the address.
func TestOptedOutPodComesDuringTheRelease(t *testing.T) {
	records := controllertest.Objects(controllertest.Record(0, true), controllertest.Record(1, true), controllertest.Record(2, true))
	s := newStage(t, records, records)
	came := controllertest.Pod(1)
	came.Annotations = map[string]string{identity.AnnotationEnabled: "false"}
	s.OnPatch = func() (func(), error) {
		return func() {
			if err := client.IgnoreAlreadyExists(s.API.Create(t.Context(), came.DeepCopy())); err != nil {
				t.Fatal(err)
			}
		}, nil
	}
	if err := s.reconcile(); err != nil {
		t.Fatal(err)
	}
	if got, want := s.Owners(), controllertest.Cooldown+" "+controllertest.Cooldown+" "+controllertest.Cooldown; got != want {
		t.Errorf("the owners are %s, want %s", got, want)
	}
}

// TestF13FinalizerHasADeadline checks that a failed release is reported, and that the finalizer is removed when its
// deadline is over and not before (F13).
func TestF13FinalizerHasADeadline(t *testing.T) {
	records := controllertest.Objects(controllertest.Record(0, true))
	s := newStage(t, records, records)
	refused := errors.New("the webhook refuses")
	s.OnPatch = func() (func(), error) { return nil, refused }
	var record v1alpha1.FixedIP
	read := func() error { return s.API.Get(t.Context(), client.ObjectKey{Namespace: "db", Name: "web-0"}, &record) }

	if err := s.reconcile(); !errors.Is(err, refused) {
		t.Fatalf("%v, want the refusal", err)
	}
	if err := read(); err != nil || len(record.Finalizers) != 1 || !s.Event("ReleaseFailed") {
		t.Errorf("in time: %v, finalizers %v", err, record.Finalizers)
	}
	s.Clock.SetTime(controllertest.Begin.Add(10 * time.Minute))
	if err := s.reconcile(); !errors.Is(err, refused) {
		t.Fatalf("%v, want the refusal", err)
	}
	if err := read(); client.IgnoreNotFound(err) != nil || err == nil || !s.Event("FinalizerForced") {
		t.Errorf("overdue: %v, finalizers %v", err, record.Finalizers)
	}
	if got := s.Owners(); !strings.HasPrefix(got, "db/web-0 ") {
		t.Errorf("the owners are %s; they could not be written", got)
	}
}

// end removes a terminating pod from the API server and from the caches.
func (s *stage) end(pod *corev1.Pod) {
	s.t.Helper()
	for _, from := range []client.Client{s.API, s.Cached} {
		var now corev1.Pod
		if err := from.Get(s.t.Context(), client.ObjectKeyFromObject(pod), &now); err != nil {
			s.t.Fatal(err)
		}
		now.Finalizers = nil
		if err := from.Update(s.t.Context(), &now); err != nil {
			s.t.Fatal(err)
		}
	}
}

// TestBatchWaitsForTerminatingPods checks that a batch is written once and as soon as possible: when no pod with an entry
// is terminating on the node any longer, or batchWindow is over.
func TestBatchWaitsForTerminatingPods(t *testing.T) {
	standing := controllertest.Objects(controllertest.Record(0, false), controllertest.Record(1, false), controllertest.Record(2, false))
	ending := func(i int) *corev1.Pod {
		p := controllertest.Pod(i)
		p.DeletionTimestamp, p.Finalizers = &metav1.Time{Time: controllertest.Begin}, []string{"test/kubelet"}
		return p
	}
	workload := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "other", UID: "other-1"}}
	others := controllertest.Record(1, false)
	others.Spec.Owner.Name, others.Spec.Owner.UID = "other", "other-1"
	elsewhere := ending(1)
	elsewhere.Spec.NodeName = "m"
	for name, c := range map[string]struct {
		objects []client.Object
		// gone is the pod that ends a millisecond after the first pass; nil: none.
		gone *corev1.Pod
		// wait is how long the batch waits in total.
		wait time.Duration
		want string
	}{
		"no pod is terminating":             {standing, nil, quietWindow, controllertest.Cooldown + " " + controllertest.Cooldown + " " + controllertest.Cooldown},
		"one is ending, and goes":           {append(controllertest.Objects(ending(1)), standing...), ending(1), time.Millisecond, controllertest.Cooldown + " " + controllertest.Cooldown + " " + controllertest.Cooldown},
		"one is ending, and stays":          {append(controllertest.Objects(ending(1)), standing...), nil, batchWindow, controllertest.Cooldown + " db/web-1 " + controllertest.Cooldown},
		"one is ending and will come back":  {append(controllertest.Objects(ending(1), workload, others), standing[0], standing[2]), nil, batchWindow, controllertest.Cooldown + " db/web-1 " + controllertest.Cooldown},
		"one is ending on another node":     {append(controllertest.Objects(elsewhere), standing...), nil, quietWindow, controllertest.Cooldown + " db/web-1 " + controllertest.Cooldown},
		"one runs, and is not asked to end": {append(controllertest.Objects(controllertest.Pod(1)), standing...), nil, quietWindow, controllertest.Cooldown + " db/web-1 " + controllertest.Cooldown},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, c.objects, c.objects)
			result, err := s.release.Reconcile(t.Context(), source.ForName("n"))
			if err != nil || result.RequeueAfter == 0 || s.Patches > 0 {
				t.Fatalf("%+v, %v, %d writes: it did not wait", result, err, s.Patches)
			}
			if c.gone != nil {
				s.Clock.Step(time.Millisecond)
				s.end(c.gone)
			}
			if err := s.reconcile(); err != nil {
				t.Fatal(err)
			}
			if got, waited := s.Owners(), s.Clock.Since(controllertest.Begin); got != c.want || s.Patches != 1 || waited != c.wait {
				t.Errorf("after %d writes and %v the owners are %s; want %s after one and %v", s.Patches, waited, got, c.want, c.wait)
			}
			if len(s.release.Batches.waiting) > 0 {
				t.Error("a batch waits for ever")
			}
		})
	}
}

// TestReleaseFailsForADeletedFixedIP checks the deadline of a FixedIP that was deleted just before the write failed, and
// whose deletion the caches do not show yet: the deadline begins now.
func TestReleaseFailsForADeletedFixedIP(t *testing.T) {
	records := controllertest.Objects(controllertest.Record(0, false))
	s := newStage(t, records, records)
	refused := errors.New("the webhook refuses")
	s.OnPatch = func() (func(), error) { return nil, refused }
	s.Clock.SetTime(time.Now().Add(time.Hour))
	if err := s.reconcile(); !errors.Is(err, refused) {
		t.Fatalf("%v, want the refusal", err)
	}
	var record v1alpha1.FixedIP
	if err := s.API.Get(t.Context(), client.ObjectKey{Namespace: "db", Name: "web-0"}, &record); err != nil || record.DeletionTimestamp == nil || !s.Event("ReleaseFailed") {
		t.Errorf("%v, deleted at %v", err, record.DeletionTimestamp)
	}
}
