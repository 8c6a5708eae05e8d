// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package inuse

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/pool"
)

// terminatedPods tracks when and how pods were deleted. A slot can be taken over only after its former pod has
// provably stopped. One of these proves it:
//
//   - The pod was never bound to the node of the slot.
//   - Its kubelet has reported that it ended. The scheduler watches pods that are neither Succeeded nor Failed, and a
//     pod that becomes one of them leaves the watch in its last version. A kubelet reports that when no container of
//     the pod runs and its sandbox is gone, and only then deletes it (since Kubernetes v1.27). The API server deletes
//     no bound pod without a version before that has the grace period 0: a pod that leaves the watch with another one,
//     or with none, has ended. (Kubernetes itself ends pods only if their node is gone or out of service.)
//   - The agent listed the address when the pod was gone, and does not any more.
//   - The pod has been gone for as long as any agent takes to report.
//
// If this process did not see the pod go, the FixedIP says when the controller did, and what the agent listed then.
// Without that, the time begins when the watch of pods was complete: a pod that went before, or while the watch had a
// gap, has not been seen.
//
// The zero value is ready, and takes it that all pods went long ago.
type terminatedPods struct {
	mu sync.Mutex
	// complete is since when the watch of pods has shown every pod; a zero incomplete means that it does so now.
	complete time.Time
	// incomplete reports whether the watch has a gap now; nil: it never has.
	incomplete func() bool
	// timeout is how long an agent takes to report.
	timeout time.Duration
	// living are the pods that the watch shows. Key: the pod, as pool entries name it. The cache of the watch loses a
	// pod before its handlers learn how it went.
	living map[string]struct{}
	// gone are the pods that went no longer ago than timeout. Key: the pod, as pool entries name it.
	gone map[string]termination
	// order are the keys of gone and their times, in the order of these. An element whose time is not that in gone is
	// of an earlier pod of the name.
	order []terminated
}

type termination struct {
	at time.Time
	// observed: this process saw the pod go.
	observed bool
	// node is where the pod may still run; empty: nowhere.
	node string
	// listed are the addresses that the agent there listed when the pod was gone.
	listed map[netip.Addr]bool
}

type terminated struct {
	pod string
	at  time.Time
}

// anyNode stands for the node of a pod whose last version was not seen.
const anyNode = "*"

// completeAt sets since when the watch has shown every pod.
func (t *terminatedPods) completeAt(at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.complete = at
}

// added records a pod that the watch shows.
func (t *terminatedPods) added(pod *corev1.Pod) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.living == nil {
		t.living = map[string]struct{}{}
	}
	t.living[pool.OwnerKey(pod.Namespace, pod.Name)] = struct{}{}
}

// lives reports whether the pod was added and not deleted.
func (t *terminatedPods) lives(owner string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, ok := t.living[owner]
	return ok
}

// deleted records that a pod left the watch, in its last version; missed: there may have been later ones.
func (t *terminatedPods) deleted(pod *corev1.Pod, missed bool, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	owner := pool.OwnerKey(pod.Namespace, pod.Name)
	delete(t.living, owner)
	this := termination{at: now, observed: true, node: pod.Spec.NodeName}
	if grace := pod.DeletionGracePeriodSeconds; !missed && (grace == nil || *grace > 0) {
		this.node = ""
	}
	if missed && this.node == "" {
		this.node = anyNode
	}
	t.record(owner, this)
	for len(t.order) > 0 && now.Sub(t.order[0].at) > t.timeout {
		if first := t.order[0]; t.gone[first.pod].at.Equal(first.at) {
			delete(t.gone, first.pod)
		}
		t.order = t.order[1:]
	}
}

// record is called under mu.
func (t *terminatedPods) record(owner string, this termination) {
	if t.gone == nil {
		t.gone = map[string]termination{}
	}
	t.gone[owner] = this
	t.order = append(t.order, terminated{owner, this.at})
}

// of returns how a pod went. recorded is what the controller says about it; nil: nothing. That counts only if this
// process did not see the pod go. Called under mu.
func (t *terminatedPods) of(owner, node string, recorded *v1alpha1.Departure, now time.Time) termination {
	since := t.complete
	if t.incomplete != nil && t.incomplete() {
		since = now
	}
	known, ok := t.gone[owner]
	if ok && known.observed && !known.at.Before(since) {
		return known
	}
	this := termination{at: since, node: anyNode, listed: map[netip.Addr]bool{}}
	if recorded != nil {
		this.at = recorded.At.Time
		for _, ip := range recorded.Listed {
			if a, err := netip.ParseAddr(ip); err == nil && recorded.NodeName == node {
				this.listed[a] = true
			}
		}
	}
	if ok && !known.observed && known.at.Equal(this.at) {
		maps.Copy(this.listed, known.listed)
	}
	return this
}

// until returns when it is certain that a pod that is gone does not run with any of the addresses on the node; zero:
// it is certain now. Otherwise, unlisted are the addresses that the agent is not known to have listed since.
func (t *terminatedPods) until(owner, node string, addrs []netip.Addr, recorded *v1alpha1.Departure, now time.Time) (at time.Time, unlisted []netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	this := t.of(owner, node, recorded, now)
	if at = this.at.Add(t.timeout); this.node != node && this.node != anyNode || !now.Before(at) {
		return time.Time{}, nil
	}
	unlisted = slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return this.listed[a] })
	if len(unlisted) == 0 {
		return time.Time{}, nil
	}
	return at, unlisted
}

// note records which of the addresses the agent of a node lists, which was read from the API server after the pod was
// gone. It reports whether any of that is new.
func (t *terminatedPods) note(owner string, n pool.Node, addrs []netip.Addr, recorded *v1alpha1.Departure, now time.Time) (news bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, living := t.living[owner]; living {
		return false
	}
	this := t.of(owner, n.Name, recorded, now)
	if this.node != n.Name && this.node != anyNode || now.Sub(this.at) > t.timeout {
		return false
	}
	listed := maps.Clone(this.listed)
	if listed == nil {
		listed = map[netip.Addr]bool{}
	}
	for _, a := range addrs {
		if n.InUse(a) && !listed[a] {
			listed[a], news = true, true
		}
	}
	if news {
		this.listed = listed
		t.record(owner, this)
	}
	return news
}
