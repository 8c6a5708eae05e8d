// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package requeue

import (
	"cmp"
	"maps"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/plugins/fixedip/metrics"
)

// Domain answers what depends on the cluster. It is called by one goroutine, without the lock of a queue.
type Domain interface {
	// CanRun reports whether the node's labels let the pod run there, and the node is not cordoned.
	CanRun(pod *corev1.Pod, node string) bool
	// HasFreeAddress reports whether the node has what the pod waits for.
	HasFreeAddress(pod *corev1.Pod, room FreeAddress, node string) bool
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

// offer is what a pod was woken for. If the pod does not use it, the next pod in the window gets it.
type offer struct {
	// by is what the pods wait for: room, or the slots of a workload.
	by Key
	// node is where addresses became free.
	node   string
	window window
}

// task is a look at the cluster that has to be made for pods that wait.
type task struct {
	offer
	// count is how many addresses became free.
	count int
	// moment is that of the event: a second event alike is a second task. It is zero for slots, of which one look is
	// enough for all events until then.
	moment uint64
}

// enqueueFreeAddress adds the work that an event makes for pods in a window that wait for room. Called under mu.
func (q *Queue) enqueueFreeAddress(e Event, in window) {
	add := func(by Key, count int) {
		if e.Node != "" && count > 0 && len(q.byKey[by]) > 0 {
			q.work.Add(task{offer{by, e.Node, in}, count, q.moment})
		}
	}
	add(anyFreeAddress, e.Freed)
	add(carriedFreeAddress, AllFreeAddresses)
	// A requested address may become free while another one is taken, so that the node has no more than before. If
	// several become free, the claim of the first pod is the event that wakes the next.
	add(requestedFreeAddress, max(1, e.Freed))
}

// process makes one look at the cluster; false if the queue has stopped.
func (q *Queue) process() bool {
	t, stopped := q.work.Get()
	if stopped {
		return false
	}
	defer q.work.Done(t)
	if t.by.Cause == metrics.Slot {
		q.offerSlots(t)
	} else {
		q.offerFreeAddress(t)
	}
	return true
}

// offerFreeAddress wakes one pod for each address that became free on a node, in the order of their arrival.
func (q *Queue) offerFreeAddress(t task) {
	for _, w := range q.candidates(t.by, t.window) {
		if t.count == 0 {
			return
		}
		if q.domain.CanRun(w.pod, t.node) && q.domain.HasFreeAddress(w.pod, *w.on.FreeAddress, t.node) &&
			q.give(w, offer{t.by, t.node, window{w.arrival, t.window.until}}, metrics.FreeAddress) {
			t.count--
		}
	}
}

// offerSlots wakes one pod for each slot that can be taken over and that no woken pod is about to take, and the
// pods that search in vain, since more of them do than there are slots.
func (q *Queue) offerSlots(t task) {
	free, err := q.domain.FreeSlots(t.by.Name)
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
			if i := slices.IndexFunc(nodes, func(node string) bool { return q.domain.CanRun(w.pod, node) }); i >= 0 &&
				q.give(w, offer{t.by, nodes[i], window{w.arrival, t.window.until}}, metrics.Slot) {
				nodes = slices.Delete(nodes, i, i+1)
			}
		}
	}
}

// candidates returns the pods in a window that wait for a key, in the order of their arrival.
func (q *Queue) candidates(k Key, in window) []*waitingPod {
	q.mu.Lock()
	defer q.mu.Unlock()
	waiting := slices.SortedFunc(maps.Values(q.byKey[k]), func(x, y *waitingPod) int { return cmp.Compare(x.arrival, y.arrival) })
	return slices.DeleteFunc(waiting, func(w *waitingPod) bool { return w.arrival <= in.after || w.arrival > in.until })
}

// notOffered returns the nodes of free slots without those that a woken pod is about to take.
func (q *Queue) notOffered(by Key, nodes []string) []string {
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
	q.work.Add(task{offer: o, count: 1})
}
