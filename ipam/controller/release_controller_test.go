package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/plan"
	"fixedip.io/fixedip/ipam/scheme"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// stage is a node with the entries of three pods of StatefulSet web, as the API server has it and as
// the caches do. What happens in between is up to the test.
type stage struct {
	t           *testing.T
	cached, api client.WithWatch
	release     *releaseReconciler
	records     *recordReconciler
	clock       *clocktesting.FakeClock
	recorder    *events.FakeRecorder
	// mu guards looks, those at workloads, and reads, those of the CiliumNode.
	mu                    sync.Mutex
	patches, looks, reads int
	// onPatch is asked before a CiliumNode is patched, and then called after it.
	onPatch func() (after func(), fail error)
}

var begin = time.Unix(1_700_000_000, 0)

func fixed(i int) string { return fmt.Sprintf("10.0.1.%d", 200+i) }

// recordOf is the FixedIP of the i-th pod, deleted a minute ago if it is.
func recordOf(i int, deleted bool) *v1alpha1.FixedIP {
	f := &v1alpha1.FixedIP{
		ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: fmt.Sprintf("web-%d", i), UID: types.UID(fmt.Sprintf("record-%d", i)), Finalizers: []string{v1alpha1.Finalizer}, Annotations: map[string]string{v1alpha1.AnnotationUID: fmt.Sprintf("record-%d", i)}},
		Spec: v1alpha1.FixedIPSpec{
			IPs: []string{fixed(i)}, NodeName: "n", PodName: fmt.Sprintf("web-%d", i), Reclaim: identity.DefaultReclaim(),
			Owner: v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "web", UID: "web-1"},
		},
		Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseInUse, PodUID: "pod"},
	}
	if deleted {
		f.DeletionTimestamp = &metav1.Time{Time: begin.Add(-time.Minute)}
	}
	return f
}

func podOf(i int) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: fmt.Sprintf("web-%d", i), UID: types.UID(fmt.Sprintf("pod-%d", i))}, Spec: corev1.PodSpec{NodeName: "n"}}
}

// newStage has the given objects at the API server and in the caches.
func newStage(t *testing.T, api, cached []client.Object) *stage {
	t.Helper()
	kinds, err := scheme.New()
	if err != nil {
		t.Fatal(err)
	}
	node := &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "node"}}
	node.Spec.IPAM.PodCIDRs = []string{"10.0.1.0/24"}
	node.Spec.IPAM.Pool = ipamtypes.AllocationMap{"10.0.1.1": {}}
	for i := range 3 {
		node.Spec.IPAM.Pool[fixed(i)] = ipamtypes.AllocationIP{Owner: fmt.Sprintf("db/web-%d", i), Resource: "db/StatefulSet/web"}
	}
	s := &stage{t: t, clock: clocktesting.NewFakeClock(begin), recorder: events.NewFakeRecorder(100)}
	build := func(objects []client.Object) *fake.ClientBuilder {
		b := fake.NewClientBuilder().WithScheme(kinds).WithObjects(objects...).WithStatusSubresource(&v1alpha1.FixedIP{}).
			WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }).
			WithIndex(&v1alpha1.FixedIP{}, restartingIndex, restarting)
		_ = index.Each(func(of client.Object, name string, fn client.IndexerFunc) error {
			b = b.WithIndex(of, name, fn)
			return nil
		})
		return b
	}
	s.cached = build(cached).Build()
	s.api = build(append(api, node)).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			if _, ok := obj.(*ciliumv2.CiliumNode); ok {
				s.mu.Lock()
				s.reads++
				s.mu.Unlock()
			}
			return c.Get(ctx, key, obj, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			s.patches++
			var fail error
			after := func() {}
			if s.onPatch != nil {
				after, fail = s.onPatch()
			}
			if fail != nil {
				return fail
			}
			defer after()
			return c.Patch(ctx, obj, patch, opts...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, name string, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			if _, ok := obj.(*ciliumv2.CiliumNode); !ok {
				return c.SubResource(name).Patch(ctx, obj, patch, opts...)
			}
			// The client above counts it. Here the status of a CiliumNode is written with the rest.
			return s.api.Patch(ctx, obj, patch)
		},
	}).Build()
	l := ledger.New()
	l.SetNode(ciliumpool.FromCiliumNode(node))
	writer := ciliumpool.NewWriter(t.Context(), ciliumpool.New(s.api), l.Node)
	s.records = &recordReconciler{workloads: s, kinds: identity.NewKinds(), ledger: l, cached: s.cached, live: s.api, writer: writer, events: s.recorder, clock: s.clock, deadline: 10 * time.Minute, silence: time.Minute, finishing: &source.Feed{}, underway: &underway{owners: map[string]bool{}}}
	s.release = &releaseReconciler{
		writer: writer, live: s.api, cached: s.cached, events: s.recorder, clock: s.clock, situation: s.records.situation,
		workloads: s,
		absences:  newAbsences(s.clock),
		gathered:  newGatherings(s.clock),
		owners:    l.OwnersOn, underway: s.records.underway, done: &source.Feed{}, deadline: 10 * time.Minute,
	}
	return s
}

// Get reads a StatefulSet from the caches, and Live at the API server: a stage has its workloads.
func (s *stage) Get(_ schema.GroupKind, namespace, name string) (*identity.Workload, error) {
	return workloadFrom(s.t.Context(), s.cached, namespace, name)
}

func (s *stage) Live(ctx context.Context, _ schema.GroupKind, namespace, name string) (*identity.Workload, error) {
	s.mu.Lock()
	s.looks++
	s.mu.Unlock()
	return workloadFrom(ctx, s.api, namespace, name)
}

func workloadFrom(ctx context.Context, from client.Reader, namespace, name string) (*identity.Workload, error) {
	var sts appsv1.StatefulSet
	err := from.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &sts)
	if err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return &identity.Workload{GroupKind: identity.StatefulSets, APIVersion: "apps/v1", Namespace: namespace, Name: name, UID: sts.UID, Template: sts.Spec.Template.Annotations, Replicas: sts.Spec.Replicas}, nil
}

// reconcile lets the release of node n come to an end, and the time pass that it waits.
func (s *stage) reconcile() error {
	for {
		result, err := s.release.Reconcile(s.t.Context(), nodeRequest("n"))
		if err != nil || result.RequeueAfter == 0 {
			return err
		}
		s.clock.Step(result.RequeueAfter)
	}
}

// end lets a pod be gone, at the API server and from the caches.
func (s *stage) end(pod *corev1.Pod) {
	s.t.Helper()
	for _, from := range []client.Client{s.api, s.cached} {
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

// owners are those of the three addresses, and what is after the slash of marks does not count.
func (s *stage) owners() string {
	s.t.Helper()
	var node ciliumv2.CiliumNode
	if err := s.api.Get(s.t.Context(), client.ObjectKey{Name: "n"}, &node); err != nil {
		s.t.Fatal(err)
	}
	var all []string
	for i := range 3 {
		all = append(all, node.Spec.IPAM.Pool[fixed(i)].Owner)
	}
	return strings.Join(all, " ")
}

// event finds the next event that has the reason.
func (s *stage) event(reason string) bool {
	for {
		select {
		case e := <-s.recorder.Events:
			if strings.Contains(e, reason) {
				return true
			}
		default:
			return false
		}
	}
}

// told are the events that there are.
func (s *stage) told() (all []string) {
	for {
		select {
		case e := <-s.recorder.Events:
			all = append(all, e)
		default:
			return all
		}
	}
}

const rests = "fixedip.io/released"

func objects(o ...client.Object) []client.Object { return o }

func TestRelease(t *testing.T) {
	workload := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "web", UID: "web-2"}}
	standing := objects(recordOf(0, false), recordOf(1, false), recordOf(2, false))
	deleted := objects(recordOf(0, true), recordOf(1, true), recordOf(2, true))
	anew := recordOf(0, false)
	anew.UID = "another"
	running := podOf(1)
	running.Status.PodIPs = []corev1.PodIP{{IP: "10.0.1.1"}}
	for name, c := range map[string]struct {
		api, cached []client.Object
		want        string
		patches     int
	}{
		"all of a deleted workload in one write": {standing, standing, rests + " " + rests + " " + rests, 1},
		"all deleted records in one write":       {deleted, deleted, rests + " " + rests + " " + rests, 1},
		"some deleted, some to be":               {objects(recordOf(0, true), recordOf(1, false)), objects(recordOf(0, true), recordOf(1, false)), rests + " " + rests + " db/web-2", 1},
		// The caches are behind in each of these.
		"the workload is back":               {append(objects(workload), standing...), standing, "db/web-0 db/web-1 db/web-2", 0},
		"a pod is back":                      {append(objects(podOf(1)), standing...), standing, rests + " db/web-1 " + rests, 1},
		"a pod is back, of a deleted record": {append(objects(podOf(1)), deleted...), deleted, rests + " db/web-1 " + rests, 1},
		"and runs with another address":      {append(objects(running), deleted...), deleted, rests + " " + rests + " " + rests, 1},
		"a record was made anew":             {objects(anew, recordOf(1, true), recordOf(2, true)), deleted, "db/web-0 " + rests + " " + rests, 1},
		"the records are gone":               {nil, deleted, "db/web-0 db/web-1 db/web-2", 0},
		"nothing goes back":                  {append(objects(workload), standing...), append(objects(workload), standing...), "db/web-0 db/web-1 db/web-2", 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, c.api, c.cached)
			if err := s.reconcile(); err != nil {
				t.Fatal(err)
			}
			if s.reads > 0 {
				t.Errorf("the CiliumNode was read %d times, and nobody came who would have it written again", s.reads)
			}
			if got := s.owners(); got != c.want || s.patches != c.patches {
				t.Errorf("after %d writes the owners are %s; want %s after %d", s.patches, got, c.want, c.patches)
			}
			// One that is there is looked at again for each of its three pods.
			most := 1
			if slices.Contains(c.api, client.Object(workload)) {
				most = 4
			}
			if s.looks > most {
				t.Errorf("one workload was looked at %d times, want %d at most", s.looks, most)
			}
		})
	}
}

// The release tracer of F2 and F17: a pod of the name is bound between the look at the API server
// and the write. It has its address back.
func TestF2PodComesDuringTheRelease(t *testing.T) {
	records := objects(recordOf(0, true), recordOf(1, true), recordOf(2, true))
	s := newStage(t, records, records)
	came := false
	s.onPatch = func() (func(), error) {
		return func() {
			if came {
				return
			}
			came = true
			if !s.release.underway.has("db/web-1") {
				t.Error("its record may be seen off before the look after the write")
			}
			if err := s.api.Create(t.Context(), podOf(1)); err != nil {
				t.Fatal(err)
			}
		}, nil
	}
	if err := s.reconcile(); err != nil {
		t.Fatal(err)
	}
	if got, want := s.owners(), rests+" db/web-1 "+rests; got != want {
		t.Errorf("the owners are %s, want %s", got, want)
	}
	if s.release.underway.has("db/web-1") {
		t.Error("its record stays for ever")
	}
}

// A pod that has opted out comes as soon as it sees the mark, and does not get the address back.
func TestOptedOutPodComesDuringTheRelease(t *testing.T) {
	records := objects(recordOf(0, true), recordOf(1, true), recordOf(2, true))
	s := newStage(t, records, records)
	came := podOf(1)
	came.Annotations = map[string]string{identity.AnnotationEnabled: "false"}
	s.onPatch = func() (func(), error) {
		return func() {
			if err := client.IgnoreAlreadyExists(s.api.Create(t.Context(), came.DeepCopy())); err != nil {
				t.Fatal(err)
			}
		}, nil
	}
	if err := s.reconcile(); err != nil {
		t.Fatal(err)
	}
	if got, want := s.owners(), rests+" "+rests+" "+rests; got != want {
		t.Errorf("the owners are %s, want %s", got, want)
	}
}

// F13: what can't be taken back is told, and the finalizer goes when it is overdue and not before.
func TestF13FinalizerHasADeadline(t *testing.T) {
	records := objects(recordOf(0, true))
	s := newStage(t, records, records)
	refused := errors.New("the webhook refuses")
	s.onPatch = func() (func(), error) { return nil, refused }
	var record v1alpha1.FixedIP
	read := func() error { return s.api.Get(t.Context(), client.ObjectKey{Namespace: "db", Name: "web-0"}, &record) }

	if err := s.reconcile(); !errors.Is(err, refused) {
		t.Fatalf("%v, want the refusal", err)
	}
	if err := read(); err != nil || len(record.Finalizers) != 1 || !s.event("ReleaseFailed") {
		t.Errorf("in time: %v, finalizers %v", err, record.Finalizers)
	}
	s.clock.SetTime(begin.Add(10 * time.Minute))
	if err := s.reconcile(); !errors.Is(err, refused) {
		t.Fatalf("%v, want the refusal", err)
	}
	if err := read(); client.IgnoreNotFound(err) != nil || err == nil || !s.event("ReleaseForced") {
		t.Errorf("overdue: %v, finalizers %v", err, record.Finalizers)
	}
	if got := s.owners(); !strings.HasPrefix(got, "db/web-0 ") {
		t.Errorf("the owners are %s; nobody could write them", got)
	}
}

// What goes back on a node goes in as few writes as it can, and as soon as it can: it waits for pods that
// are ending there while their addresses will go back too, and not for others.
func TestReleaseWaitsForWhatIsEnding(t *testing.T) {
	standing := objects(recordOf(0, false), recordOf(1, false), recordOf(2, false))
	ending := func(i int) *corev1.Pod {
		p := podOf(i)
		p.DeletionTimestamp, p.Finalizers = &metav1.Time{Time: begin}, []string{"test/kubelet"}
		return p
	}
	workload := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "other", UID: "other-1"}}
	others := recordOf(1, false)
	others.Spec.Owner.Name, others.Spec.Owner.UID = "other", "other-1"
	elsewhere := ending(1)
	elsewhere.Spec.NodeName = "m"
	for name, c := range map[string]struct {
		objects []client.Object
		// gone is the pod that is gone a moment after the first look.
		gone *corev1.Pod
		// wait is what was waited in all.
		wait time.Duration
		want string
	}{
		"nobody is ending":                  {standing, nil, settling, rests + " " + rests + " " + rests},
		"one is ending, and goes":           {append(objects(ending(1)), standing...), ending(1), time.Millisecond, rests + " " + rests + " " + rests},
		"one is ending, and stays":          {append(objects(ending(1)), standing...), nil, gathering, rests + " db/web-1 " + rests},
		"one is ending and will come back":  {append(objects(ending(1), workload, others), standing[0], standing[2]), nil, settling, rests + " db/web-1 " + rests},
		"one is ending on another node":     {append(objects(elsewhere), standing...), nil, settling, rests + " db/web-1 " + rests},
		"one runs, and is not asked to end": {append(objects(podOf(1)), standing...), nil, settling, rests + " db/web-1 " + rests},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, c.objects, c.objects)
			result, err := s.release.Reconcile(t.Context(), nodeRequest("n"))
			if err != nil || result.RequeueAfter == 0 || s.patches > 0 {
				t.Fatalf("%+v, %v, %d writes: nothing has waited", result, err, s.patches)
			}
			if c.gone != nil {
				s.clock.Step(time.Millisecond)
				s.end(c.gone)
			}
			if err := s.reconcile(); err != nil {
				t.Fatal(err)
			}
			if got, waited := s.owners(), s.clock.Since(begin); got != c.want || s.patches != 1 || waited != c.wait {
				t.Errorf("after %d writes and %v the owners are %s; want %s after one and %v", s.patches, waited, got, c.want, c.wait)
			}
			if s.release.gathered.open("n") {
				t.Error("something waits for ever")
			}
		})
	}
}

// The write may fail for a record that was deleted just before, which the caches do not show yet: its
// deadline begins now.
func TestReleaseFailsOfWhatWasJustDeleted(t *testing.T) {
	records := objects(recordOf(0, false))
	s := newStage(t, records, records)
	refused := errors.New("the webhook refuses")
	s.onPatch = func() (func(), error) { return nil, refused }
	s.clock.SetTime(time.Now().Add(time.Hour))
	if err := s.reconcile(); !errors.Is(err, refused) {
		t.Fatalf("%v, want the refusal", err)
	}
	var record v1alpha1.FixedIP
	if err := s.api.Get(t.Context(), client.ObjectKey{Namespace: "db", Name: "web-0"}, &record); err != nil || record.DeletionTimestamp == nil || !s.event("ReleaseFailed") {
		t.Errorf("%v, deleted at %v", err, record.DeletionTimestamp)
	}
}

// A pod that runs with another address keeps nothing of its name's from going back, whether or not the step
// says which: a scheduler may have claimed for a pod that was gone by then.
func TestReleaseBesideTheRunningPod(t *testing.T) {
	elsewhere := podOf(0)
	elsewhere.Spec.NodeName = "another"
	other, its := podOf(0), podOf(0)
	other.Status.PodIPs = []corev1.PodIP{{IP: "10.0.1.1"}}
	its.Status.PodIPs = []corev1.PodIP{{IP: fixed(0)}}
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		goes bool
	}{
		"no pod":                       {nil, true},
		"it is on another node":        {elsewhere, true},
		"it runs with another address": {other, true},
		"it runs with the address":     {its, false},
		"it has none yet":              {podOf(0), false},
	} {
		t.Run(name, func(t *testing.T) {
			var api []client.Object
			if c.pod != nil {
				api = objects(c.pod)
			}
			s := newStage(t, api, nil)
			err := s.records.release(t.Context(), types.NamespacedName{Namespace: "db", Name: "web-0"}, plan.Situation{Pod: c.pod}, plan.Next{Step: plan.ReleaseEntries, Node: "n"})
			if goes := err == nil && strings.HasPrefix(s.owners(), rests+" "); goes != c.goes || !goes && !errors.Is(err, errSuperseded) {
				t.Errorf("%v; the owners are %s", err, s.owners())
			}
		})
	}
}
