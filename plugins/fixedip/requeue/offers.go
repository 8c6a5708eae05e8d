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

// Domain makes the decisions of a Queue that depend on the state of the cluster. One goroutine calls it, without the lock
// of the Queue.
type Domain interface {
	// CanRun reports whether the node exists, is not cordoned for the pod, and has labels with which the pod may run there.
	CanRun(pod *corev1.Pod, node string) bool
	// HasFreeAddress reports whether the free addresses of the node help the pod, which waits for wanted.
	HasFreeAddress(pod *corev1.Pod, wanted FreeAddress, node string) bool
	// FreeSlots returns the free slots of a workload, named as in pool entries.
	FreeSlots(workload string) (FreeSlots, error)
}

// FreeSlots describes the free slots of a workload: their last pods do not exist any more, have ended, or are being
// deleted.
type FreeSlots struct {
	// Count is the number of free slots, and Searching the number of pods that search for a slot.
	Count, Searching int
	// Nodes contains the node of each slot that a pod can take over now, once for each slot.
	Nodes []string
}

// window selects the pods whose arrival is greater than after, and at most until.
type window struct{ after, until uint64 }

// offer is a free address or slot for which a pod was requeued. If that pod does not use the offer, the next pod in the
// window is requeued.
type offer struct {
	// by is the key that the pods wait for: a kind of free address, or the slots of a workload.
	by Key
	// node is the node of the address or slot; empty if a task is about all slots of a workload.
	node   string
	window window
}

// task is a decision about waiting pods for which the queue has to call the Domain.
type task struct {
	offer
	// count is the maximum number of pods to requeue. It has no meaning for slots.
	count int
	// moment is the value of Queue.moment when the task was added, so that Notify adds two tasks for two equal events. It is
	// zero for slots, because one task serves all earlier events, and for an offer that a pod passed on.
	moment uint64
}

// enqueueFreeAddress adds the tasks of an event for the pods in a window that wait for a free address. Called under mu.
func (q *Queue) enqueueFreeAddress(e Event, in window) {
	add := func(by Key, count int) {
		if e.Node != "" && count > 0 && len(q.byKey[by]) > 0 {
			q.work.Add(task{offer{by, e.Node, in}, count, q.moment})
		}
	}
	add(anyFreeAddress, e.Freed)
	add(carriedFreeAddress, AllFreeAddresses)
	// A requested address may become free while another one is taken. The number of free addresses does not grow then, so
	// at least one pod is requeued. If more addresses became free, the claim of that pod is the event that requeues the next.
	add(requestedFreeAddress, max(1, e.Freed))
}

// process handles one task. It returns false if the queue has stopped.
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

// offerFreeAddress requeues at most t.count of the pods that the free addresses of a node help, in the order of their
// arrival.
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

// offerSlots requeues at most one pod for each slot that can be taken over and is not offered to a pod yet. It offers a slot
// to a pod that does not search only if fewer pods search than slots are free. If more pods search than slots are free,
// offerSlots also requeues the surplus of the searching pods, the last arrivals first, so that they get slots of their own.
func (q *Queue) offerSlots(t task) {
	free, err := q.domain.FreeSlots(t.by.Name)
	if err != nil {
		// The pods stay in the queue. The scheduler also tries unschedulable pods again periodically.
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

// notOffered returns the nodes of the slots that are not offered to a pod yet. nodes contains the node of each slot that a
// pod can take over now.
func (q *Queue) notOffered(by Key, nodes []string) []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	remaining := slices.Clone(nodes)
	for _, o := range q.offers {
		if i := slices.Index(remaining, o.node); o.by == by && i >= 0 {
			remaining = slices.Delete(remaining, i, i+1)
		}
	}
	return remaining
}

// give requeues a pod for an offer. It returns false, and requeues no pod, if the pod does not wait any more or has an
// offer already.
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

// PassOn passes the offer for which a pod was requeued to the next pod. Call PassOn when the pod could not use the
// offer.
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
