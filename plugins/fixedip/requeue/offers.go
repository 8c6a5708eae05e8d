// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package requeue

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/plugins/fixedip/metrics"
)

// Domain answers what depends on the cluster. It is called by one goroutine, without the lock of a queue.
type Domain interface {
	// Fits reports whether the node's labels, and whether it is cordoned, let the pod run there.
	Fits(pod *corev1.Pod, node string) bool
	// HasRoom reports whether the node has what the pod waits for.
	HasRoom(pod *corev1.Pod, room Room, node string) bool
	// FreeSlots returns the free slots of a workload.
	FreeSlots(workload string) (FreeSlots, error)
}

// FreeSlots are the slots of a workload whose pods are gone or being deleted.
type FreeSlots struct {
	// Count is how many there are, and Searching how many pods look for one.
	Count, Searching int
	// Nodes are the nodes of those that a pod can take over now, one element for each slot.
	Nodes []string
}

// window selects the pods that arrived in it, after excluded, until included.
type window struct{ after, until uint64 }

// task is a look at the cluster that has to be made for pods that wait.
type task struct {
	// by are the pods that the task concerns: ofRoom, ofCarried, ofRequested, or the slots of a workload.
	by key
	// node is where addresses became free, and count how many.
	node   string
	count  int
	window window
}

// offer is what a pod was woken for. If the pod does not use it, the next pod in the window gets it.
type offer struct {
	by     key
	node   string
	window window
}

// enqueueRoom adds the work that an event makes for pods in a window that wait for room. Called under mu.
func (q *Queue) enqueueRoom(e Event, in window) {
	if e.Freed > 0 && len(q.byKey[key{kind: ofRoom}]) > 0 {
		q.enqueue(task{by: key{kind: ofRoom}, node: e.Node, count: e.Freed, window: in})
	}
	if e.Node != "" && len(q.byKey[key{kind: ofCarried}]) > 0 {
		q.enqueue(task{by: key{kind: ofCarried}, node: e.Node, count: AllRoom, window: in})
	}
	// A requested address may become free while another one is taken, so that the node has no more than before. If
	// several become free, the claim of the first pod is the event that wakes the next.
	if e.Node != "" && len(q.byKey[key{kind: ofRequested}]) > 0 {
		q.enqueue(task{by: key{kind: ofRequested}, node: e.Node, count: max(1, e.Freed), window: in})
	}
}

// enqueue adds work. Tasks for the slots of one workload become one. Called under mu.
func (q *Queue) enqueue(t task) {
	if i := slices.IndexFunc(q.work, func(o task) bool { return t.by.kind == ofSlots && o.by == t.by }); i >= 0 {
		w := &q.work[i].window
		*w = window{min(w.after, t.window.after), max(w.until, t.window.until)}
		return
	}
	q.work = append(q.work, t)
	select {
	case q.wakeup <- struct{}{}:
	default:
	}
}

// run does the work until ctx ends.
func (q *Queue) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-q.wakeup:
			q.process()
		}
	}
}

// process does all work that there is.
func (q *Queue) process() {
	for {
		q.mu.Lock()
		if len(q.work) == 0 {
			q.work = nil
			q.mu.Unlock()
			return
		}
		t := q.work[0]
		q.work = q.work[1:]
		q.mu.Unlock()
		if t.by.kind == ofSlots {
			q.offerSlots(t)
		} else {
			q.offerRoom(t)
		}
	}
}

// offerRoom wakes one pod for each address that became free on a node, in the order of their arrival.
func (q *Queue) offerRoom(t task) {
	for _, w := range q.candidates(t.by, t.window) {
		if t.count == 0 {
			return
		}
		if q.domain.Fits(w.pod, t.node) && q.domain.HasRoom(w.pod, *w.on.Room, t.node) &&
			q.give(w, offer{t.by, t.node, window{w.arrival, t.window.until}}, metrics.Room) {
			t.count--
		}
	}
}

// offerSlots wakes one pod for each slot that can be taken over and that no woken pod is about to take, and the
// pods that search in vain, since more of them do than there are slots.
func (q *Queue) offerSlots(t task) {
	free, err := q.domain.FreeSlots(t.by.name)
	if err != nil {
		// The scheduler tries the pods again in any case.
		return
	}
	waiting := q.candidates(t.by, window{until: math.MaxUint64})
	surplus := free.Searching - free.Count
	for _, w := range slices.Backward(waiting) {
		if surplus > 0 && w.on.Searching && q.give(w, offer{}, metrics.Slot) {
			surplus--
		}
	}
	nodes := q.notOffered(t.by, free.Nodes)
	for _, w := range waiting {
		if !w.on.Searching && free.Count <= free.Searching {
			continue
		}
		if w.arrival > t.window.after && w.arrival <= t.window.until {
			if i := slices.IndexFunc(nodes, func(node string) bool { return q.domain.Fits(w.pod, node) }); i >= 0 &&
				q.give(w, offer{t.by, nodes[i], window{w.arrival, t.window.until}}, metrics.Slot) {
				nodes = slices.Delete(nodes, i, i+1)
			}
		}
	}
}

// candidates returns the pods in a window that wait for a key, in the order of their arrival.
func (q *Queue) candidates(k key, in window) []*waitingPod {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.SortedFunc(func(yield func(*waitingPod) bool) {
		for w := range maps.Values(q.byKey[k]) {
			if w.arrival > in.after && w.arrival <= in.until && !yield(w) {
				return
			}
		}
	}, func(x, y *waitingPod) int { return cmp.Compare(x.arrival, y.arrival) })
}

// notOffered returns the nodes of free slots without those that a woken pod is about to take.
func (q *Queue) notOffered(by key, nodes []string) []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	left := slices.Clone(nodes)
	for _, o := range q.offers {
		if i := slices.Index(left, o.node); o.by == by && i >= 0 {
			left = slices.Delete(left, i, i+1)
		}
	}
	return left
}

// give wakes a pod for an offer; false if the pod does not wait for it any more.
func (q *Queue) give(w *waitingPod, o offer, reason metrics.Cause) bool {
	q.mu.Lock()
	defer q.unlock()
	if _, offered := q.offers[w.pod.UID]; offered || q.waiting[w.pod.UID] != w {
		return false
	}
	if o.node != "" {
		q.offers[w.pod.UID] = o
	}
	q.wake(w, reason)
	return true
}

// PassOn lets the next pod have what the pod was woken for. Call it when a pod could not use it.
func (q *Queue) PassOn(uid types.UID) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.passOn(uid)
}

func (q *Queue) passOn(uid types.UID) {
	o, ok := q.offers[uid]
	if !ok {
		return
	}
	delete(q.offers, uid)
	q.enqueue(task{by: o.by, node: o.node, count: 1, window: o.window})
}
