// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"sync"
	"time"
)

// unrecordedSince contains the claims without a FixedIP. The ledger does not store the time since which a claim has had none.
var unrecordedSince seen

// seen remembers when it first observed each of a changing set of keys. The zero value is empty and ready for use.
type seen struct {
	mu sync.Mutex
	// first contains the keys of the last observation. Value: the time of the first of the consecutive observations that
	// had the key.
	first map[string]time.Time
}

// observe replaces the set with keys, and returns the earliest time in first; the zero time if there are no keys.
func (s *seen) observe(keys []string, now time.Time) (oldest time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := make(map[string]time.Time, len(keys))
	for _, k := range keys {
		at, ok := s.first[k]
		if !ok {
			at = now
		}
		first[k] = at
		if oldest.IsZero() || at.Before(oldest) {
			oldest = at
		}
	}
	s.first = first
	return oldest
}
