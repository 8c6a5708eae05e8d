// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
)

// departures are how pods went, and when: whoever takes over the slot of one has to know that it does not run
// any more. That it is gone from the API does not say so: one that was deleted by force runs on for a
// while, and where that was a moment after it was bound, its agent has not even listed its address.
// What proves it is one of four things.
//
// It was never bound to the node of the slot.
//
// Its kubelet has said that it is over. The scheduler watches pods that are neither Succeeded nor Failed, and one
// that comes to be either leaves the watch as it was before. A kubelet that ends a pod says so when no
// container of it runs and its sandbox is gone, and only then removes it (since Kubernetes v1.27; before that it
// just removes it). The API server removes no pod that was bound without a version before that whose grace
// period is 0: what leaves the watch with another, or with none, has come to an end. (Kubernetes ends pods itself
// only where their node is gone or out of service, which counts as much.)
//
// The agent listed the address when the pod was gone, and does so no more. Or the pod has been gone for so
// long that the agent would have listed it (see silence, and live). Where this process did not see the pod go, the FixedIP
// says what the agent listed and since when the pod is gone, as the controller saw it: a scheduler that is started again
// and again would begin to wait each time. Without that the time begins with this process.
//
// The zero value is ready, and knows of no pod: all went long ago.
type departures struct {
	mu sync.Mutex
	// start is when this began to be told. Pods that nobody here has seen were gone by then.
	start time.Time
	// patience is the longest that anybody waits for an agent.
	patience time.Duration
	// living are the pods that this has been told of. Key: the pod, as pool entries name it. The
	// cache loses a pod before it is said how it went.
	living map[string]struct{}
	// gone are the pods that went no longer ago than patience. Key: the pod, as pool entries name it.
	// The others are as good as those that were gone at the start, when that is as long ago.
	gone map[string]departure
	// order are the departures in their order. One whose time is not that of its pod in gone is an earlier one of
	// the same name.
	order []gone
}

type departure struct {
	at time.Time
	// node is where the pod may run on; empty: nowhere.
	node string
	// listed are the addresses that the agent there listed when the pod was gone.
	listed map[netip.Addr]bool
}

type gone struct {
	pod string
	at  time.Time
}

// begin sets the start, and that somebody waits for agents as long as this.
func (d *departures) begin(start time.Time, patience time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.start.IsZero() {
		d.start = start
	}
	d.patience = max(d.patience, patience)
}

// came notes a pod that the watch shows.
func (d *departures) came(pod *corev1.Pod) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.living == nil {
		d.living = map[string]struct{}{}
	}
	d.living[pool.OwnerKey(pod.Namespace, pod.Name)] = struct{}{}
}

// lives tells whether a pod has come and has not gone, as far as this has been told.
func (d *departures) lives(owner string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.living[owner]
	return ok
}

// went notes that a pod has left the watch, in its last version; missed: there may have been later ones.
func (d *departures) went(pod *corev1.Pod, missed bool, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	owner := pool.OwnerKey(pod.Namespace, pod.Name)
	delete(d.living, owner)
	this := departure{at: now, node: pod.Spec.NodeName}
	if grace := pod.DeletionGracePeriodSeconds; !missed && (grace == nil || *grace > 0) {
		this.node = ""
	}
	if missed && this.node == "" {
		this.node = anyNode
	}
	if d.gone == nil {
		d.gone = map[string]departure{}
	}
	d.gone[owner] = this
	d.order = append(d.order, gone{owner, now})
	d.tidy(now)
}

// anyNode is where a pod may run of which nobody knows where it was bound, if it was.
const anyNode = "*"

// tidy forgets departures that are too long ago to matter. Called under mu.
func (d *departures) tidy(now time.Time) {
	if now.Sub(d.start) <= d.patience {
		return
	}
	for len(d.order) > 0 && now.Sub(d.order[0].at) > d.patience {
		if first := d.order[0]; d.gone[first.pod].at.Equal(first.at) {
			delete(d.gone, first.pod)
		}
		d.order = d.order[1:]
	}
}

// until is when it is sure that a pod that is gone does not run with any of the addresses on the node; zero: it is
// now. Where it is not, unheard are the addresses that the agent is not known to have listed since. recorded is what
// the controller has said of the pod's end, which only matters where nobody here saw it; nil: nothing.
func (d *departures) until(owner, node string, addrs []netip.Addr, recorded *v1alpha1.Departure, patience time.Duration, now time.Time) (at time.Time, unheard []netip.Addr) {
	d.mu.Lock()
	defer d.mu.Unlock()
	this, known := d.gone[owner]
	if !known {
		this = departure{at: d.start, node: anyNode}
	}
	unseen := recorded != nil && this.at.Equal(d.start)
	if unseen && recorded.At.Time.Before(d.start) {
		this.at = recorded.At.Time
	}
	if at = this.at.Add(patience); this.node != node && this.node != anyNode || !now.Before(at) {
		return time.Time{}, nil
	}
	for _, a := range addrs {
		if !this.listed[a] && !(unseen && recorded.NodeName == node && slices.Contains(recorded.Listed, a.String())) {
			unheard = append(unheard, a)
		}
	}
	if len(unheard) == 0 {
		return time.Time{}, nil
	}
	return at, unheard
}

// longest is the longest that anybody waits for an agent.
func (d *departures) longest() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.patience
}

// note notes which of the addresses that a pod had the agent of a node lists, where the node was read from the
// API server after the pod was gone. It tells whether any of that is new.
func (d *departures) note(owner string, n pool.Node, addrs []netip.Addr, now time.Time) (news bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	this, known := d.gone[owner]
	if !known {
		this = departure{at: d.start, node: anyNode}
	}
	if _, back := d.living[owner]; back || now.Sub(this.at) > d.patience || this.node != n.Name && this.node != anyNode {
		return false
	}
	for _, a := range addrs {
		if !n.InUse(a) || this.listed[a] {
			continue
		}
		if this.listed == nil {
			this.listed = map[netip.Addr]bool{}
		}
		this.listed[a] = true
		news = true
	}
	if news && !known {
		if d.gone == nil {
			d.gone = map[string]departure{}
		}
		d.order = append(d.order, gone{owner, this.at})
	}
	if news {
		d.gone[owner] = this
	}
	return news
}

// departed tells until when it is not sure that the former holder of a slot does not run any more, as until does. What
// its agent lists by our watch the API server is asked about.
func (w *world) departed(owner, node string, addrs []netip.Addr, recorded *v1alpha1.Departure, patience time.Duration) time.Time {
	at, unheard := w.departures.until(owner, node, addrs, recorded, patience, time.Now())
	if n, ok := w.ledger.Node(node); ok && slices.ContainsFunc(unheard, n.InUse) {
		w.live.ask(node, owner, func(n pool.Node) {
			if w.departures.note(owner, n, unheard, time.Now()) {
				w.tell(news{freed: n.Name})
			}
		})
	}
	return at
}

// followHolders wakes those that wait for a slot when its pod is gone, and forgets deleted pods that
// looked for one.
func (w *world) followHolders(pods toolscache.SharedIndexInformer) error {
	_, err := pods.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { w.departures.came(obj.(*corev1.Pod)) },
		DeleteFunc: func(obj any) {
			pod := deleted[*corev1.Pod](obj)
			_, missed := obj.(toolscache.DeletedFinalStateUnknown)
			w.departures.went(pod, missed, time.Now())
			w.seekers.leave(pod.UID)
			owner := pool.OwnerKey(pod.Namespace, pod.Name)
			for _, h := range w.ledger.Held(owner) {
				if w.slotted(h) {
					// What the agent lists at this moment is the proof once it does not.
					w.departed(owner, h.Node, h.Addrs, nil, w.departures.longest())
				}
				w.tell(news{freed: h.Node})
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	return nil
}

// slotted tells whether a holding is that of a slot.
func (w *world) slotted(h ledger.Holding) bool {
	label, _, ok := w.ledger.EntryOf(h).WorkloadRef()
	kind, known := w.kinds.Labelled(label)
	return ok && known && kind.Identity == identity.Slot
}
