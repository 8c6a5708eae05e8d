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
	existing := controllertest.Objects(controllertest.Record(0, false), controllertest.Record(1, false), controllertest.Record(2, false))
	deleted := controllertest.Objects(controllertest.Record(0, true), controllertest.Record(1, true), controllertest.Record(2, true))
	recreated := controllertest.Record(0, false)
	recreated.UID = "another"
	running := controllertest.Pod(1)
	running.Status.PodIPs = []corev1.PodIP{{IP: "10.0.1.1"}}
	for name, c := range map[string]struct {
		api, cached []client.Object
		want        string
		patches     int
	}{
		"FixedIPs of a deleted workload, one write": {existing, existing, controllertest.Cooldown + " " + controllertest.Cooldown + " " + controllertest.Cooldown, 1},
		"deleted FixedIPs, one write":               {deleted, deleted, controllertest.Cooldown + " " + controllertest.Cooldown + " " + controllertest.Cooldown, 1},
		"one of two FixedIPs is being deleted":      {controllertest.Objects(controllertest.Record(0, true), controllertest.Record(1, false)), controllertest.Objects(controllertest.Record(0, true), controllertest.Record(1, false)), controllertest.Cooldown + " " + controllertest.Cooldown + " db/web-2", 1},
		// In the next rows, except the last one, the caches are behind the API server.
		"the workload exists again":                        {append(controllertest.Objects(workload), existing...), existing, "db/web-0 db/web-1 db/web-2", 0},
		"a pod exists again":                               {append(controllertest.Objects(controllertest.Pod(1)), existing...), existing, controllertest.Cooldown + " db/web-1 " + controllertest.Cooldown, 1},
		"a pod of a deleted FixedIP exists again":          {append(controllertest.Objects(controllertest.Pod(1)), deleted...), deleted, controllertest.Cooldown + " db/web-1 " + controllertest.Cooldown, 1},
		"a pod exists again and runs with another address": {append(controllertest.Objects(running), deleted...), deleted, controllertest.Cooldown + " " + controllertest.Cooldown + " " + controllertest.Cooldown, 1},
		"a FixedIP was created again":                      {controllertest.Objects(recreated, controllertest.Record(1, true), controllertest.Record(2, true)), deleted, "db/web-0 " + controllertest.Cooldown + " " + controllertest.Cooldown, 1},
		"the FixedIPs are gone":                            {nil, deleted, "db/web-0 db/web-1 db/web-2", 0},
		"the workload exists in the cache too":             {append(controllertest.Objects(workload), existing...), append(controllertest.Objects(workload), existing...), "db/web-0 db/web-1 db/web-2", 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, c.api, c.cached)
			if err := s.reconcile(); err != nil {
				t.Fatal(err)
			}
			if s.Reads > 0 {
				t.Errorf("got %d reads of the CiliumNode, want none, since no entry is restored", s.Reads)
			}
			if got := s.Owners(); got != c.want || s.Patches != c.patches {
				t.Errorf("got owners %s after %d patches, want %s after %d", got, s.Patches, c.want, c.patches)
			}
			// An existing workload is read once for the batch and once for each of its three pods.
			most := 1
			if slices.Contains(c.api, client.Object(workload)) {
				most = 4
			}
			if s.WorkloadReads > most {
				t.Errorf("got %d reads of the workload, want at most %d", s.WorkloadReads, most)
			}
		})
	}
}

// TestF2PodComesDuringTheRelease checks that an entry is restored if its pod is bound after the decision from the API
// server and before the confirmation (F2 and F17 in docs/project/field-bugs.md).
func TestF2PodComesDuringTheRelease(t *testing.T) {
	records := controllertest.Objects(controllertest.Record(0, true), controllertest.Record(1, true), controllertest.Record(2, true))
	s := newStage(t, records, records)
	created := false
	s.OnPatch = func() (func(), error) {
		return func() {
			if created {
				return
			}
			created = true
			if !s.release.Batches.InFlight(key(1)) {
				t.Error("db/web-1 is not in flight before the write is confirmed, so that its FixedIP may be removed")
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
		t.Errorf("got owners %s, want %s", got, want)
	}
	if s.release.Batches.InFlight(key(1)) {
		t.Error("db/web-1 is still in flight after the reconcile, so that its FixedIP is never removed")
	}
}

// TestOptedOutPodComesDuringTheRelease checks that an address stays released if a pod that opted out is bound during the
// release: that pod does not get the address.
func TestOptedOutPodComesDuringTheRelease(t *testing.T) {
	records := controllertest.Objects(controllertest.Record(0, true), controllertest.Record(1, true), controllertest.Record(2, true))
	s := newStage(t, records, records)
	optedOut := controllertest.Pod(1)
	optedOut.Annotations = map[string]string{identity.AnnotationEnabled: "false"}
	s.OnPatch = func() (func(), error) {
		return func() {
			if err := client.IgnoreAlreadyExists(s.API.Create(t.Context(), optedOut.DeepCopy())); err != nil {
				t.Fatal(err)
			}
		}, nil
	}
	if err := s.reconcile(); err != nil {
		t.Fatal(err)
	}
	if got, want := s.Owners(), controllertest.Cooldown+" "+controllertest.Cooldown+" "+controllertest.Cooldown; got != want {
		t.Errorf("got owners %s, want %s", got, want)
	}
}

// TestF13FinalizerHasADeadline checks that a failed release is reported, and that the finalizer is removed when its
// deadline is over and not before (F13 in docs/project/field-bugs.md).
func TestF13FinalizerHasADeadline(t *testing.T) {
	records := controllertest.Objects(controllertest.Record(0, true))
	s := newStage(t, records, records)
	refused := errors.New("the webhook refuses")
	s.OnPatch = func() (func(), error) { return nil, refused }
	var record v1alpha1.FixedIP
	read := func() error { return s.API.Get(t.Context(), client.ObjectKey{Namespace: "db", Name: "web-0"}, &record) }

	if err := s.reconcile(); !errors.Is(err, refused) {
		t.Fatalf("got error %v, want that of the webhook", err)
	}
	if err := read(); err != nil || len(record.Finalizers) != 1 || !s.Event("ReleaseFailed") {
		t.Errorf("before the deadline: got error %v and finalizers %v, want the finalizer and an event ReleaseFailed", err, record.Finalizers)
	}
	s.Clock.SetTime(controllertest.Begin.Add(10 * time.Minute))
	if err := s.reconcile(); !errors.Is(err, refused) {
		t.Fatalf("got error %v, want that of the webhook", err)
	}
	if err := read(); client.IgnoreNotFound(err) != nil || err == nil || !s.Event("FinalizerForced") {
		t.Errorf("after the deadline: got error %v and finalizers %v, want the FixedIP gone and an event FinalizerForced", err, record.Finalizers)
	}
	if got := s.Owners(); !strings.HasPrefix(got, "db/web-0 ") {
		t.Errorf("got owners %s, want db/web-0 first, since no write succeeded", got)
	}
}

// end removes the finalizers of a terminating pod at the API server and in the caches, so that the pod no longer exists.
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

// TestBatchWaitsForTerminatingPods checks that a batch is written in one patch, and when: after quietWindow if no pod whose
// address may be released is terminating on the node; otherwise when the last such pod is removed, and joinWindow after the
// last identity joined at the latest. The address of a pod that still exists, on any node, is not released.
func TestBatchWaitsForTerminatingPods(t *testing.T) {
	existing := controllertest.Objects(controllertest.Record(0, false), controllertest.Record(1, false), controllertest.Record(2, false))
	ending := func(i int) *corev1.Pod {
		p := controllertest.Pod(i)
		p.DeletionTimestamp, p.Finalizers = &metav1.Time{Time: controllertest.Begin}, []string{"test/kubelet"}
		return p
	}
	workload := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "other", UID: "other-1"}}
	ofOther := controllertest.Record(1, false)
	ofOther.Spec.Owner.Name, ofOther.Spec.Owner.UID = "other", "other-1"
	onOtherNode := ending(1)
	onOtherNode.Spec.NodeName = "m"
	for name, c := range map[string]struct {
		objects []client.Object
		// gone is the pod that is removed a millisecond after the first reconcile; nil: none.
		gone *corev1.Pod
		// wait is the time for which the batch waits in total.
		wait time.Duration
		want string
	}{
		"no pod is terminating":                    {existing, nil, quietWindow, controllertest.Cooldown + " " + controllertest.Cooldown + " " + controllertest.Cooldown},
		"a pod terminates and is removed":          {append(controllertest.Objects(ending(1)), existing...), ending(1), time.Millisecond, controllertest.Cooldown + " " + controllertest.Cooldown + " " + controllertest.Cooldown},
		"a pod terminates and is not removed":      {append(controllertest.Objects(ending(1)), existing...), nil, joinWindow, controllertest.Cooldown + " db/web-1 " + controllertest.Cooldown},
		"the workload of a terminating pod exists": {append(controllertest.Objects(ending(1), workload, ofOther), existing[0], existing[2]), nil, quietWindow, controllertest.Cooldown + " db/web-1 " + controllertest.Cooldown},
		"a pod terminates on another node":         {append(controllertest.Objects(onOtherNode), existing...), nil, quietWindow, controllertest.Cooldown + " db/web-1 " + controllertest.Cooldown},
		"a pod runs and is not being deleted":      {append(controllertest.Objects(controllertest.Pod(1)), existing...), nil, quietWindow, controllertest.Cooldown + " db/web-1 " + controllertest.Cooldown},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, c.objects, c.objects)
			result, err := s.release.Reconcile(t.Context(), source.ForName("n"))
			if err != nil || result.RequeueAfter == 0 || s.Patches > 0 {
				t.Fatalf("first reconcile: got %+v, error %v and %d patches; want a requeue and no patch", result, err, s.Patches)
			}
			if c.gone != nil {
				s.Clock.Step(time.Millisecond)
				s.end(c.gone)
			}
			if err := s.reconcile(); err != nil {
				t.Fatal(err)
			}
			if got, waited := s.Owners(), s.Clock.Since(controllertest.Begin); got != c.want || s.Patches != 1 || waited != c.wait {
				t.Errorf("got owners %s after %d patches and %v, want %s after one patch and %v", got, s.Patches, waited, c.want, c.wait)
			}
			if len(s.release.Batches.waiting) > 0 {
				t.Errorf("got %d batches after the release, want none", len(s.release.Batches.waiting))
			}
		})
	}
}

// TestReleaseFailsForADeletedFixedIP checks the deadline of a FixedIP that the controller deleted just before the write failed:
// the caches do not show the deletion yet, and the deadline begins at the failure.
func TestReleaseFailsForADeletedFixedIP(t *testing.T) {
	records := controllertest.Objects(controllertest.Record(0, false))
	s := newStage(t, records, records)
	refused := errors.New("the webhook refuses")
	s.OnPatch = func() (func(), error) { return nil, refused }
	s.Clock.SetTime(time.Now().Add(time.Hour))
	if err := s.reconcile(); !errors.Is(err, refused) {
		t.Fatalf("got error %v, want that of the webhook", err)
	}
	var record v1alpha1.FixedIP
	if err := s.API.Get(t.Context(), client.ObjectKey{Namespace: "db", Name: "web-0"}, &record); err != nil || record.DeletionTimestamp == nil || !s.Event("ReleaseFailed") {
		t.Errorf("got error %v and deletion timestamp %v, want a FixedIP that is being deleted and an event ReleaseFailed", err, record.DeletionTimestamp)
	}
}
