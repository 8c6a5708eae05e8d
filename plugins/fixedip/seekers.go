// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// seekers are the pods that look for a free slot of their workload, and have none yet. The zero
// value is ready.
type seekers struct {
	mu sync.Mutex
	// pods are the UIDs of the pods. Key: the workload, named as in pool entries. A pod is in it from
	// the cycle in which it was told to look until an address is decided for it, or it is deleted.
	pods map[string]map[types.UID]bool
}

// seek tells whether a pod is to look for one of so many free slots: it is unless as many others do.
func (s *seekers) seek(workload string, uid types.UID, free int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pods[workload], uid)
	if len(s.pods[workload]) >= free {
		s.tidy(workload)
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

// others is how many other pods look for a slot of the workload.
func (s *seekers) others(workload string, uid types.UID) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.pods[workload])
	if s.pods[workload][uid] {
		n--
	}
	return n
}

// leave notes that a pod looks no more.
func (s *seekers) leave(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for workload, uids := range s.pods {
		if uids[uid] {
			delete(uids, uid)
			s.tidy(workload)
		}
	}
}

func (s *seekers) tidy(workload string) {
	if len(s.pods[workload]) == 0 {
		delete(s.pods, workload)
	}
}
