// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"cmp"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"

	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
)

// cause is what a refused pod waits for. Each field that is set is a thing that would help.
type cause struct {
	// owner: anything about the reservation of this identity.
	owner string
	// node: anything about the pool of this node.
	node string
	// room: any node with more room than before.
	room bool
	// workload: another wish of this workload, or that it is seen at all. Named as in pool entries.
	workload string
	// until: news of a node of which this is true. It is called with the lock of waiting held.
	until func(node string) bool
	// at: the time has come; zero: none does.
	at time.Time
	// occupant: this pod has ended, or is gone; nil: none has to.
	occupant *corev1.Pod
}

// news is a change of the world.
type news struct {
	node     string
	room     bool
	owners   []string
	workload string
	// freed is a node on which a slot may be free; nothing else about it has changed.
	freed string
}

func (n news) helps(c cause) bool {
	if c.room && n.room || c.node != "" && c.node == n.node || c.workload != "" && c.workload == n.workload {
		return true
	}
	if node := cmp.Or(n.node, n.freed); c.until != nil && node != "" && c.until(node) {
		return true
	}
	for _, o := range n.owners {
		if o == c.owner {
			return true
		}
	}
	return false
}

// waiting are the pods of one profile that the plugin refused, with what would help each. When it
// comes, the pod is activated: put into the queue again at once. News that come while a pod is
// still being refused are not lost: refuse looks at those since the decision began.
type waiting struct {
	activate func(pods map[string]*corev1.Pod)
	// cached are the pods as the watch last showed them; nil before follow. The queue hears of a
	// change apart from us, and may hand out a pod as it was before.
	cached toolscache.Store

	mu sync.Mutex
	// moment counts the news heard. The first piece is of moment 1.
	moment uint64
	// recent are the last pieces of news. That of a moment is at the moment modulo the length.
	recent [recentNews]news
	// pods are the refused ones. Key: the pod's UID. Value: the pod and its cause. A pod leaves
	// when it is woken, reserved or deleted.
	pods map[types.UID]refused
	// leaving are pods whose node could not take them: their next cycle looks at the others too. Key:
	// the pod's UID. A pod leaves with that cycle, or as from pods.
	leaving map[types.UID]struct{}
}

// recentNews is how many pieces of news may come while a pod is being refused before it is tried again
// whatever they say. In a large cluster every agent reports every few seconds, so that some always do.
const recentNews = 128

type refused struct {
	pod   *corev1.Pod
	cause cause
}

func newWaiting(activate func(map[string]*corev1.Pod)) *waiting {
	return &waiting{activate: activate, pods: map[types.UID]refused{}, leaving: map[types.UID]struct{}{}}
}

// now is the moment to hand to refuse later. Take it before the world is looked at.
func (w *waiting) now() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.moment
}

// refuse notes what a pod waits for, as decided at the given moment. Where news since then help it,
// the pod is woken at once.
func (w *waiting) refuse(pod *corev1.Pod, c cause, decided uint64) {
	w.mu.Lock()
	missed := w.since(decided, c) || w.mended(pod) || w.vacated(c.occupant)
	if !missed {
		w.pods[pod.UID] = refused{pod: pod, cause: c}
	}
	w.mu.Unlock()
	switch {
	case missed:
		metrics.Woken(metrics.Missed)
		w.wake(pod)
	case !c.at.IsZero():
		time.AfterFunc(time.Until(c.at), func() { w.due(pod) })
	}
}

// due wakes a pod that waited for a time, if it still waits.
func (w *waiting) due(pod *corev1.Pod) {
	w.mu.Lock()
	r, ok := w.pods[pod.UID]
	ok = ok && !r.cause.at.IsZero() && !time.Now().Before(r.cause.at)
	if ok {
		delete(w.pods, pod.UID)
	}
	w.mu.Unlock()
	if ok {
		metrics.Woken(metrics.Failover)
		w.wake(r.pod)
	}
}

// since tells whether news that came after a moment help a pod, or were too many to tell. Called under mu.
func (w *waiting) since(moment uint64, c cause) bool {
	if w.moment-moment > recentNews {
		return true
	}
	for m := moment + 1; m <= w.moment; m++ {
		if w.recent[m%recentNews].helps(c) {
			return true
		}
	}
	return false
}

// mended tells whether the annotations of a pod are others by now. Called under mu: of an update that
// is not cached yet, follow is told later, and finds the pod noted.
func (w *waiting) mended(pod *corev1.Pod) bool {
	if w.cached == nil {
		return false
	}
	obj, exists, err := w.cached.Get(pod)
	if err != nil || !exists {
		return false
	}
	now := obj.(*corev1.Pod)
	return now.UID == pod.UID && !maps.Equal(now.Annotations, pod.Annotations)
}

// vacated tells whether a pod has ended by now, or is gone. Called under mu: of what is not cached yet, follow is told
// later.
func (w *waiting) vacated(occupant *corev1.Pod) bool {
	if occupant == nil {
		return false
	}
	obj, exists, err := w.cached.Get(occupant)
	if err != nil || !exists {
		return err == nil
	}
	now := obj.(*corev1.Pod)
	return now.UID != occupant.UID || podutil.IsTerminal(now)
}

// vacates wakes the pods that waited for one that has ended, or is gone.
func (w *waiting) vacates(uid types.UID) {
	w.mu.Lock()
	var woken []*corev1.Pod
	maps.DeleteFunc(w.pods, func(_ types.UID, r refused) bool {
		if r.cause.occupant == nil || r.cause.occupant.UID != uid {
			return false
		}
		metrics.Woken(metrics.Owner)
		woken = append(woken, r.pod)
		return true
	})
	w.mu.Unlock()
	w.wake(woken...)
}

// settle forgets a pod that waits for nothing of ours any more.
func (w *waiting) settle(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.pods, uid)
	delete(w.leaving, uid)
}

// leave has the pod tried again at once, on all nodes.
func (w *waiting) leave(pod *corev1.Pod) {
	w.mu.Lock()
	w.leaving[pod.UID] = struct{}{}
	w.mu.Unlock()
	metrics.Woken(metrics.Failover)
	w.wake(pod)
}

// leaves tells, once, whether the cycle that begins is to look at all nodes.
func (w *waiting) leaves(uid types.UID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, ok := w.leaving[uid]
	delete(w.leaving, uid)
	return ok
}

// hear wakes the pods that the news may help.
func (w *waiting) hear(n news) {
	w.mu.Lock()
	w.moment++
	w.recent[w.moment%recentNews] = n
	var woken []*corev1.Pod
	maps.DeleteFunc(w.pods, func(_ types.UID, r refused) bool {
		if !n.helps(r.cause) {
			return false
		}
		metrics.Woken(n.by(r.cause))
		woken = append(woken, r.pod)
		return true
	})
	w.mu.Unlock()
	w.wake(woken...)
}

func (w *waiting) wake(pods ...*corev1.Pod) {
	if len(pods) == 0 {
		return
	}
	byName := make(map[string]*corev1.Pod, len(pods))
	for _, p := range pods {
		byName[p.Namespace+"/"+p.Name] = p
	}
	w.activate(byName)
}

// follow forgets pods that are deleted, and wakes those whose annotations were mended, of which the queue
// itself takes no notice, and those that waited for a pod to go.
func (w *waiting) follow(pods toolscache.SharedIndexInformer) error {
	w.cached = pods.GetStore()
	_, err := pods.AddEventHandler(toolscache.ResourceEventHandlerFuncs{UpdateFunc: w.podUpdated, DeleteFunc: w.podDeleted})
	if err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	return nil
}

func (w *waiting) podUpdated(before, after any) {
	was, pod := before.(*corev1.Pod), after.(*corev1.Pod)
	w.mu.Lock()
	r, ok := w.pods[pod.UID]
	mended := ok && !maps.Equal(was.Annotations, pod.Annotations)
	if mended {
		delete(w.pods, pod.UID)
	}
	w.mu.Unlock()
	if mended {
		metrics.Woken(metrics.Annotation)
		w.wake(r.pod)
	}
	if was.UID != pod.UID || podutil.IsTerminal(pod) && !podutil.IsTerminal(was) {
		w.vacates(was.UID)
	}
}

func (w *waiting) podDeleted(obj any) {
	uid := deleted[*corev1.Pod](obj).UID
	w.settle(uid)
	w.vacates(uid)
}
