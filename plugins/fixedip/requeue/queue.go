// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package requeue

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/watch"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
)

const (
	// wakeInterval is the shortest time after which the queue requeues the same pod again. It equals the scheduler's
	// default initial backoff.
	wakeInterval = time.Second
	// recentEvents is the number of events that the queue remembers. If more events occur between the decision about a
	// pod and Add, the pod is requeued in any case.
	recentEvents = 128
)

// Queue contains the waiting pods of one profile. It is safe for concurrent use.
type Queue struct {
	activate func(pods map[string]*corev1.Pod)
	domain   Domain
	// cached contains the pods as the watch last showed them. The informer updates it before it calls a handler.
	cached toolscache.Store
	// work contains the tasks. One goroutine handles them.
	work   workqueue.TypedInterface[task]
	served sync.WaitGroup

	mu sync.Mutex
	// moment counts the events. The first event has moment 1.
	moment uint64
	// recent contains the last events. The event of a moment is at index moment%recentEvents.
	recent [recentEvents]Event
	// arrivals counts the pods that Add has added.
	arrivals uint64
	// waiting contains the pods in the queue. Key: the pod's UID. Invariant: each of these pods is in cached.
	waiting map[types.UID]*waitingPod
	// byKey contains the waiting pods by the keys that they wait for (WakeOn.index). Key of the inner map: the pod's UID.
	// Invariant: a pod is under its keys exactly while it is in waiting.
	byKey map[Key]map[types.UID]*waitingPod
	// woken contains the time at which the queue last requeued a pod, until Remove is called for the pod. Key: the pod's UID.
	// Invariant: each of these pods is in cached.
	woken map[types.UID]time.Time
	// offers contains the free addresses and slots for which pods were requeued and which the pods have not used yet.
	// Key: the pod's UID. Invariant: each of these pods is in cached.
	offers map[types.UID]offer
	// activated contains the pods to activate when mu is released. Key: "namespace/name".
	activated map[string]*corev1.Pod
}

type waitingPod struct {
	pod *corev1.Pod
	on  WakeOn
	// arrival orders the pods that wait for the same key. It is the value of Queue.arrivals when the pod was added.
	arrival uint64
	// timer requeues the pod when wakeInterval has passed since the pod was last requeued; nil: no requeueing is
	// delayed.
	timer *time.Timer
}

// New returns a queue that activates pods with the given function, and runs until ctx ends. pods is the informer of all pods
// that the scheduler watches.
func New(ctx context.Context, pods toolscache.SharedIndexInformer, domain Domain, activate func(map[string]*corev1.Pod)) (*Queue, error) {
	q := newQueue(pods.GetStore(), domain, activate)
	if _, err := pods.AddEventHandler(watch.Handler(q.podChanged)); err != nil {
		return nil, fmt.Errorf("add an event handler for pods: %w", err)
	}
	context.AfterFunc(ctx, q.work.ShutDown)
	q.served.Go(func() {
		for q.process() {
		}
	})
	return q, nil
}

func newQueue(cached toolscache.Store, domain Domain, activate func(map[string]*corev1.Pod)) *Queue {
	return &Queue{
		activate: activate, domain: domain, cached: cached, work: workqueue.NewTyped[task](),
		waiting: map[types.UID]*waitingPod{}, byKey: map[Key]map[types.UID]*waitingPod{},
		woken: map[types.UID]time.Time{}, offers: map[types.UID]offer{},
	}
}

// Wait returns when the queue has stopped. Call it after the context of New has ended.
func (q *Queue) Wait() { q.served.Wait() }

// Now returns the moment of the last event. Call Now before reading the cache for a decision about a pod, and pass the result
// to Add.
func (q *Queue) Now() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.moment
}

// Add adds a refused pod to the queue, or replaces the causes that the pod waits for. decided is the result of Now
// before the decision. If an event since then may help the pod, the pod is requeued. Add passes on the pod's offer, and does
// not add a pod that was deleted.
func (q *Queue) Add(pod *corev1.Pod, on WakeOn, decided uint64) {
	q.mu.Lock()
	defer q.unlock()
	q.drop(pod.UID)
	q.passOn(pod.UID)
	now := q.current(pod)
	if now == nil {
		q.forget(pod.UID)
		return
	}
	q.arrivals++
	w := &waitingPod{pod: pod, on: on, arrival: q.arrivals}
	q.waiting[pod.UID] = w
	for _, k := range on.index() {
		if q.byKey[k] == nil {
			q.byKey[k] = map[types.UID]*waitingPod{}
		}
		q.byKey[k][pod.UID] = w
	}
	if q.missed(w, now, decided) {
		q.wake(w, metrics.Missed)
	}
}

// missed reports whether a pod has to be requeued at once: an event between the decision and Add helps the pod, the
// queue no longer remembers all of these events, or the annotations of the pod have changed. For events about free
// addresses, missed adds tasks, because only the Domain can decide about them. Called under mu.
func (q *Queue) missed(w *waitingPod, now *corev1.Pod, decided uint64) bool {
	// The scheduler may have decided from an older version of the pod than the watch shows.
	if !maps.Equal(now.Annotations, w.pod.Annotations) || q.moment-decided > recentEvents {
		return true
	}
	for m := decided + 1; m <= q.moment; m++ {
		e := q.recent[m%recentEvents]
		if slices.ContainsFunc(w.on.Keys, e.about) {
			return true
		}
		if w.on.FreeAddress != nil {
			q.enqueueFreeAddress(e, window{w.arrival - 1, w.arrival})
		}
	}
	return false
}

// current returns the pod as the watch shows it; nil if the pod does not exist any more.
func (q *Queue) current(pod *corev1.Pod) *corev1.Pod {
	obj, _, err := q.cached.Get(pod)
	if now, ok := obj.(*corev1.Pod); ok && err == nil && now.UID == pod.UID {
		return now
	}
	return nil
}

// Notify records an event and requeues the pods that the event helps.
func (q *Queue) Notify(e Event) {
	q.mu.Lock()
	defer q.unlock()
	q.moment++
	q.recent[q.moment%recentEvents] = e
	keys := append(slices.Clip(e.Keys), Key{Cause: metrics.Node, Name: e.Node})
	if len(e.Subnets) > 0 {
		keys = slices.AppendSeq(keys, maps.Keys(q.byKey))
		keys = slices.DeleteFunc(keys, func(k Key) bool { return !e.about(k) })
	}
	all := window{until: q.arrivals}
	for _, k := range keys {
		switch waiting := q.byKey[k]; {
		case len(waiting) == 0:
		case k.Cause == metrics.Slot:
			q.work.Add(task{offer: offer{by: k, window: all}})
		default:
			for _, w := range waiting {
				q.wake(w, k.Cause)
			}
		}
	}
	q.enqueueFreeAddress(e, all)
}

// wake requeues a waiting pod, at once or when wakeInterval has passed since the pod was last requeued. Called under
// mu.
func (q *Queue) wake(w *waitingPod, reason metrics.Cause) {
	if wait := time.Until(q.woken[w.pod.UID].Add(wakeInterval)); wait > 0 {
		if w.timer == nil {
			w.timer = time.AfterFunc(wait, func() {
				q.mu.Lock()
				defer q.unlock()
				if q.waiting[w.pod.UID] == w {
					w.timer = nil
					q.wake(w, reason)
				}
			})
		}
		return
	}
	q.drop(w.pod.UID)
	q.woken[w.pod.UID] = time.Now()
	metrics.Requeued(reason)
	q.activateLater(w.pod)
}

func (q *Queue) activateLater(pod *corev1.Pod) {
	if q.activated == nil {
		q.activated = map[string]*corev1.Pod{}
	}
	q.activated[pod.Namespace+"/"+pod.Name] = pod
}

// unlock releases mu, and then activates the pods that were requeued under mu. It does not activate them under mu, because
// activation takes the lock of the scheduling queue.
func (q *Queue) unlock() {
	woken := q.activated
	q.activated = nil
	q.mu.Unlock()
	if len(woken) > 0 {
		q.activate(woken)
	}
}

// Retry removes a pod from the queue, passes on its offer, and activates the pod at once: the next cycle tries other nodes.
// It does not activate a pod that was deleted.
func (q *Queue) Retry(pod *corev1.Pod) {
	q.mu.Lock()
	defer q.unlock()
	q.drop(pod.UID)
	q.passOn(pod.UID)
	if q.current(pod) == nil {
		return
	}
	metrics.Requeued(metrics.Failover)
	q.activateLater(pod)
}

// Unplaced returns the number of pods in the queue, and the creation time of the oldest, for each cause that pods wait for.
// If a pod waits for several causes, it counts for the one that comes first in metrics.Awaited.
func (q *Queue) Unplaced() map[metrics.Cause]metrics.Unplaced {
	q.mu.Lock()
	defer q.mu.Unlock()
	all := map[metrics.Cause]metrics.Unplaced{}
	for _, w := range q.waiting {
		of, keys := metrics.Annotation, w.on.index()
		for _, c := range metrics.Awaited {
			if slices.ContainsFunc(keys, func(k Key) bool { return k.Cause == c }) {
				of = c
				break
			}
		}
		u, created := all[of], w.pod.CreationTimestamp.Time
		u.Pods++
		if u.Oldest.IsZero() || created.Before(u.Oldest) {
			u.Oldest = created
		}
		all[of] = u
	}
	return all
}

// Remove forgets a pod that Reserve has accepted for a node, or that was deleted.
func (q *Queue) Remove(uid types.UID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.forget(uid)
}

func (q *Queue) forget(uid types.UID) {
	q.drop(uid)
	delete(q.woken, uid)
	delete(q.offers, uid)
}

// drop takes a pod out of the queue. Called under mu.
func (q *Queue) drop(uid types.UID) {
	w, ok := q.waiting[uid]
	if !ok {
		return
	}
	delete(q.waiting, uid)
	for _, k := range w.on.index() {
		delete(q.byKey[k], uid)
		if len(q.byKey[k]) == 0 {
			delete(q.byKey, k)
		}
	}
	if w.timer != nil {
		w.timer.Stop()
	}
}

// podChanged requeues a pod whose annotations changed, because the scheduling queue does not do that. If the pod has ended or
// was deleted, podChanged requeues the pods that wait for that. If the pod was deleted, podChanged also forgets the pod and
// passes on its offer. after is then nil, or a new pod with the same name.
func (q *Queue) podChanged(before, after *corev1.Pod) {
	if before == nil {
		return
	}
	deleted := after == nil || before.UID != after.UID
	switch {
	case deleted:
		q.PassOn(before.UID)
		q.Remove(before.UID)
	case !maps.Equal(before.Annotations, after.Annotations):
		q.mu.Lock()
		if w, ok := q.waiting[before.UID]; ok {
			q.wake(w, metrics.Annotation)
		}
		q.unlock()
	}
	if deleted || podutil.IsTerminal(after) && !podutil.IsTerminal(before) {
		q.Notify(Event{Keys: Keys(metrics.Owner, pool.OwnerKey(before.Namespace, before.Name))})
	}
}
