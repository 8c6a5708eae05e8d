// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package packed

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	cachetesting "k8s.io/client-go/tools/cache/testing"
	"k8s.io/utils/ptr"
)

// follower is an event handler that follows the nodes of pods. It reports an event that does not fit the former ones, such as
// a second addition or a change from a state that it has not seen.
type follower struct {
	mu sync.Mutex
	// nodes are the nodes of the pods. Key: the name of the pod.
	nodes map[string]string
	// calls counts the events.
	calls int
	// initial counts the additions that were marked as part of the initial list.
	initial int
	wrong   []string
}

func newFollower() *follower { return &follower{nodes: map[string]string{}} }

func (f *follower) OnAdd(obj any, initial bool) {
	p := obj.(*corev1.Pod)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	if initial {
		f.initial++
	}
	if node, known := f.nodes[p.Name]; known {
		f.wrong = append(f.wrong, fmt.Sprintf("%s was added twice, on %s and %s", p.Name, node, p.Spec.NodeName))
	}
	f.nodes[p.Name] = p.Spec.NodeName
}

func (f *follower) OnUpdate(before, after any) {
	b, a := before.(*corev1.Pod), after.(*corev1.Pod)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	if f.nodes[a.Name] != b.Spec.NodeName {
		f.wrong = append(f.wrong, fmt.Sprintf("%s changed from %s, but was on %s", a.Name, b.Spec.NodeName, f.nodes[a.Name]))
	}
	f.nodes[a.Name] = a.Spec.NodeName
}

func (f *follower) OnDelete(obj any) {
	if t, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = t.Obj
	}
	p := obj.(*corev1.Pod)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	if _, known := f.nodes[p.Name]; !known {
		f.wrong = append(f.wrong, fmt.Sprintf("%s was deleted, but not added", p.Name))
	}
	delete(f.nodes, p.Name)
}

// state returns a copy of what the follower has seen.
func (f *follower) state() (nodes map[string]string, calls int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.nodes), f.calls
}

// eventually waits until a condition is true.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for !condition() {
		select {
		case <-t.Context().Done():
			t.Fatalf("%s: never", what)
		case <-time.After(time.Millisecond):
		}
	}
}

// startPods starts an informer of pods, whose goroutines end with the test.
func startPods(t *testing.T, source *cachetesting.FakeControllerSource) *informer {
	t.Helper()
	i := NewInformer(source, &corev1.Pod{}, 0, cache.Indexers{}).(*informer)
	var running sync.WaitGroup
	running.Go(func() { i.RunWithContext(t.Context()) })
	t.Cleanup(running.Wait)
	return i
}

// TestHandlersJoinWhilePodsChange checks that each handler sees each pod once and then each change in order, whether it was
// added before the start or while pods change.
func TestHandlersJoinWhilePodsChange(t *testing.T) {
	source := newSource(t)
	const pods, changes = 50, 1000
	want := map[string]string{}
	for n := range pods {
		p := pod(fmt.Sprintf("web-%d", n), "node-0")
		source.Add(p)
		want[p.Name] = "node-0"
	}
	i := startPods(t, source)
	followers := []*follower{newFollower()}
	add := func(f *follower) cache.ResourceEventHandlerRegistration {
		t.Helper()
		r, err := i.AddEventHandler(f)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	registrations := []cache.ResourceEventHandlerRegistration{add(followers[0])}
	for n := range changes {
		p := pod(fmt.Sprintf("web-%d", n*7%pods), fmt.Sprintf("node-%d", n))
		_, exists := want[p.Name]
		switch {
		case n%5 == 0 && exists:
			source.Delete(p)
			delete(want, p.Name)
		case exists:
			source.Modify(p)
			want[p.Name] = p.Spec.NodeName
		default:
			source.Add(p)
			want[p.Name] = p.Spec.NodeName
		}
		if n%100 == 0 {
			f := newFollower()
			followers = append(followers, f)
			registrations = append(registrations, add(f))
		}
	}
	for n, f := range followers {
		eventually(t, fmt.Sprintf("handler %d has seen the last state", n), func() bool {
			got, _ := f.state()
			return cmp.Equal(want, got)
		})
		if !registrations[n].HasSynced() {
			t.Errorf("handler %d has seen all pods, but its registration is not synced", n)
		}
		for _, wrong := range f.wrong {
			t.Errorf("handler %d: %s", n, wrong)
		}
	}
}

// TestInitialList checks that the pods that exist when a handler joins are marked as initial, and later ones are not.
func TestInitialList(t *testing.T) {
	source := newSource(t)
	source.Add(pod("web-0", "node-1"))
	i := startPods(t, source)
	first := newFollower()
	early, err := i.AddEventHandler(first)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first handler is synced", early.HasSynced)
	source.Add(pod("web-1", "node-1"))
	eventually(t, "the second pod", func() bool { _, calls := first.state(); return calls == 2 })
	second := newFollower()
	late, err := i.AddEventHandler(second)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the second handler is synced", late.HasSynced)
	if first.initial != 1 || second.initial != 2 {
		t.Errorf("got %d and %d pods marked as initial, want 1 and 2", first.initial, second.initial)
	}
}

// TestHandlerUsesInformer checks that a handler may read the store, ask whether the informer is synced, and add a handler.
func TestHandlerUsesInformer(t *testing.T) {
	source := newSource(t)
	source.Add(pod("web-0", "node-1"))
	i := startPods(t, source)
	inner := newFollower()
	var seen sync.Map
	_, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(any) {
		if _, err := i.AddEventHandler(inner); err != nil {
			t.Error(err)
		}
		seen.Store("synced", i.HasSynced())
		seen.Store("stored", len(i.GetStore().List()))
	}})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the inner handler is called", func() bool { _, calls := inner.state(); return calls == 1 })
	synced, _ := seen.Load("synced")
	stored, _ := seen.Load("stored")
	if synced != true || stored != 1 {
		t.Errorf("the handler saw synced %v and %v pods, want true and 1", synced, stored)
	}
}

// TestRemovedHandler checks that a removed handler is not called again, and that other handlers are.
func TestRemovedHandler(t *testing.T) {
	source := newSource(t)
	i := startPods(t, source)
	removed, kept := newFollower(), newFollower()
	r, err := i.AddEventHandler(removed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := i.AddEventHandler(kept); err != nil {
		t.Fatal(err)
	}
	for n, remove := range []bool{true, true, false} { // Removing twice has no further effect.
		if remove {
			eventually(t, "the handler is synced", r.HasSynced)
			if err := i.RemoveEventHandler(r); err != nil {
				t.Fatal(err)
			}
		}
		source.Add(pod(fmt.Sprintf("web-%d", n), "node-1"))
		eventually(t, "the other handler is called", func() bool { _, calls := kept.state(); return calls == n+1 })
	}
	if _, calls := removed.state(); calls != 0 {
		t.Errorf("the removed handler was called %d times", calls)
	}
}

// TestListAfterInterruption checks that after an interrupted watch handlers are called with the pods that have changed, and not
// with the others.
func TestListAfterInterruption(t *testing.T) {
	source := newSource(t)
	for n := range 3 {
		source.Add(pod(fmt.Sprintf("web-%d", n), "node-1"))
	}
	i := startPods(t, source)
	f := newFollower()
	r, err := i.AddEventHandler(f)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the handler is synced", r.HasSynced)
	source.DeleteDropWatch(pod("web-0", "node-1"))
	source.ModifyDropWatch(pod("web-1", "node-2"))
	source.AddDropWatch(pod("web-3", "node-3"))
	source.ResetWatch()
	want := map[string]string{"web-1": "node-2", "web-2": "node-1", "web-3": "node-3"}
	eventually(t, "the handler has seen the missed changes", func() bool {
		got, _ := f.state()
		return cmp.Equal(want, got)
	})
	// A later change shows that the whole list was handled.
	source.Modify(pod("web-2", "node-4"))
	eventually(t, "the last change", func() bool { got, _ := f.state(); return got["web-2"] == "node-4" })
	if _, calls := f.state(); calls != 3+3+1 {
		t.Errorf("got %d calls, want 7: three pods, three missed changes, one change", calls)
	}
	if len(f.wrong) > 0 {
		t.Error(strings.Join(f.wrong, "\n"))
	}
}

// TestResync checks that handlers are called with unchanged objects after the resync period.
func TestResync(t *testing.T) {
	source := newSource(t)
	source.Add(pod("web-0", "node-1"))
	i := NewInformer(source, &corev1.Pod{}, time.Second, cache.Indexers{})
	f := newFollower()
	if _, err := i.AddEventHandler(f); err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() { i.RunWithContext(t.Context()) })
	t.Cleanup(running.Wait)
	eventually(t, "a resync", func() bool { _, calls := f.state(); return calls >= 2 })
	if len(f.wrong) > 0 {
		t.Error(strings.Join(f.wrong, "\n"))
	}
}

// TestInformerRefuses checks the errors of calls that an informer cannot carry out.
func TestInformerRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		stop bool
		call func(i *informer) error
		want string
	}{
		"a transform after the start": {
			call: func(i *informer) error { return i.SetTransform(withoutLabels) },
			want: "the informer was started before",
		},
		"a watch error handler after the start": {
			call: func(i *informer) error { return i.SetWatchErrorHandler(func(*cache.Reflector, error) {}) },
			want: "the informer was started before",
		},
		"another resync period": {
			call: func(i *informer) error {
				_, err := i.AddEventHandlerWithResyncPeriod(newFollower(), time.Minute)
				return err
			},
			want: "add an event handler for *v1.Pod: its resync period is 1m0s, but that of the informer is 0s",
		},
		"a handler after the end": {
			stop: true,
			call: func(i *informer) error {
				_, err := i.AddEventHandlerWithOptions(newFollower(), cache.HandlerOptions{ResyncPeriod: ptr.To(time.Duration(0))})
				return err
			},
			want: "add an event handler for *v1.Pod: the informer has stopped",
		},
		"a registration of another informer": {
			call: func(i *informer) error { return i.RemoveEventHandler(nil) },
			want: "remove an event handler for *v1.Pod: <nil> is not a registration of this informer",
		},
	} {
		t.Run(name, func(t *testing.T) {
			i := NewInformer(newSource(t), &corev1.Pod{}, 0, cache.Indexers{}).(*informer)
			ctx, stop := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() { i.RunWithContext(ctx) })
			t.Cleanup(func() { stop(); running.Wait() })
			eventually(t, "the informer is synced", i.HasSynced)
			if c.stop {
				stop()
				eventually(t, "the informer has stopped", i.IsStopped)
			}
			if err := c.call(i); err == nil || err.Error() != c.want {
				t.Errorf("got error %v, want %s", err, c.want)
			}
		})
	}
}

// TestWatchErrorHandler checks that the handler is called with the error of a failed list.
func TestWatchErrorHandler(t *testing.T) {
	failing := &cache.ListWatch{
		ListWithContextFunc: func(context.Context, metav1.ListOptions) (apiruntime.Object, error) {
			return nil, errors.New("the API server is away")
		},
		WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return watch.NewFake(), nil },
	}
	i := NewInformer(failing, &corev1.Pod{}, 0, cache.Indexers{})
	failed := make(chan error, 100)
	if err := i.SetWatchErrorHandler(func(_ *cache.Reflector, err error) {
		select {
		case failed <- err:
		default:
		}
	}); err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() { i.RunWithContext(t.Context()) })
	t.Cleanup(running.Wait)
	if err := <-failed; !strings.Contains(err.Error(), "the API server is away") {
		t.Errorf("got error %v, want that of the list", err)
	}
	if i.HasSynced() {
		t.Error("the informer is synced without a list")
	}
}
