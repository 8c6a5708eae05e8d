// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// slotWaiters are the pods that search for a free slot of their workload and have none yet. The zero value is ready.
type slotWaiters struct {
	mu sync.Mutex
	// pods are the UIDs of the pods. Key: the workload, named as in pool entries. Invariant: a pod is in it only while
	// the watch shows it, from the cycle that told it to search until an address is decided for it.
	pods map[string]map[types.UID]bool
}

// search reports whether a pod searches for one of so many free slots: unless as many other pods do. exists reports
// whether the watch shows the pod: it is asked under the lock, so that removePod follows if it is deleted.
func (s *slotWaiters) search(workload string, uid types.UID, free int, exists func() bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(workload, uid)
	if len(s.pods[workload]) >= free || !exists() {
		return false
	}
	if s.pods == nil {
		s.pods = map[string]map[types.UID]bool{}
	}
	if s.pods[workload] == nil {
		s.pods[workload] = map[types.UID]bool{}
	}
	s.pods[workload][uid] = true
	return true
}

// count returns how many pods search for a slot of the workload.
func (s *slotWaiters) count(workload string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.pods[workload])
}

// leave removes a pod of a workload.
func (s *slotWaiters) leave(workload string, uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(workload, uid)
}

// removePod removes a pod whose workload may not be known any more, and returns the workload.
func (s *slotWaiters) removePod(uid types.UID) (workload string, searched bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for workload, uids := range s.pods {
		if uids[uid] {
			s.remove(workload, uid)
			return workload, true
		}
	}
	return "", false
}

// remove is called under mu.
func (s *slotWaiters) remove(workload string, uid types.UID) {
	delete(s.pods[workload], uid)
	if len(s.pods[workload]) == 0 {
		delete(s.pods, workload)
	}
}
