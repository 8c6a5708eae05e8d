// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"fixedip.io/fixedip/ipam/core/pool"
)

// silence judges what it means that the agent of a ready node does not list an address as used.
//
// An agent says what it has given out seconds later, and a pod may be gone from the API before it has: one
// that was deleted by force a moment after it was bound runs on, and nobody says so. Silence therefore
// proves something in two cases. The agent listed the address when the pod was gone, and does so no more. Or
// the pod has been gone for so long that every agent that the API server hears of has said what it has. The
// pod was gone when the next of its name was made, which is what both are measured by.
//
// What the agent listed when the pod was gone only the API server knows (see live). The watch of
// CiliumNodes may be behind the one of pods: the listing that it shows may be that of an earlier
// pod, which was over before the one in question began.
type silence struct {
	// patience is how long an agent may take.
	patience time.Duration
	// pods are those that wait, and others.
	pods corelisters.PodLister

	mu sync.Mutex
	// listed are the addresses that agents listed while a pod waited for them, as the API server had it. Key:
	// the UID of the pod, and an address. Value: the node. They are there only while the pod is, and is not
	// bound. A scheduler that starts anew has to ask again.
	listed map[types.UID]map[netip.Addr]string
}

func newSilence(patience time.Duration, pods corelisters.PodLister) *silence {
	return &silence{patience: patience, pods: pods, listed: map[types.UID]map[netip.Addr]string{}}
}

// until is when the silence of a node's agent about addresses proves that the predecessor of a pod does not
// run any more; zero: it does now. Where it does not, unheard are the addresses that the agent is not
// known to have listed since.
func (s *silence) until(uid types.UID, made time.Time, node string, addrs []netip.Addr, now time.Time) (at time.Time, unheard []netip.Addr) {
	if at = s.ends(made, now); at.IsZero() {
		return time.Time{}, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range addrs {
		if s.listed[uid][a] != node {
			unheard = append(unheard, a)
		}
	}
	if len(unheard) == 0 {
		return time.Time{}, nil
	}
	return at, unheard
}

// ends is when the predecessor of a pod does not run any more if no agent has said so by then; zero: that was before.
func (s *silence) ends(made, now time.Time) time.Time {
	if at := made.Add(s.patience); now.Before(at) {
		return at
	}
	return time.Time{}
}

// note notes which of the addresses the agent of a node lists, where the node was read from the API server
// after the pod was made. It tells whether any of that is new.
func (s *silence) note(pod types.NamespacedName, uid types.UID, n pool.Node, addrs []netip.Addr) (news bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// A pod that goes, or is bound, after this look is forgotten after it: the cache has it before follow is told.
	if now, err := s.pods.Pods(pod.Namespace).Get(pod.Name); err != nil || now.UID != uid || now.Spec.NodeName != "" {
		return false
	}
	for _, a := range addrs {
		if !n.InUse(a) || s.listed[uid][a] == n.Name {
			continue
		}
		if s.listed[uid] == nil {
			s.listed[uid] = map[netip.Addr]string{}
		}
		s.listed[uid][a] = n.Name
		news = true
	}
	return news
}

func (s *silence) forget(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.listed, uid)
}

// follow forgets pods that are bound or gone.
func (s *silence) follow(pods toolscache.SharedIndexInformer) error {
	_, err := pods.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		UpdateFunc: func(before, after any) {
			if b, pod := before.(*corev1.Pod), after.(*corev1.Pod); pod.Spec.NodeName != "" || pod.UID != b.UID {
				s.forget(b.UID)
			}
		},
		DeleteFunc: func(obj any) { s.forget(deleted[*corev1.Pod](obj).UID) },
	})
	return err
}
