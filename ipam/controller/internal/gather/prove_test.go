// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package gather

import (
	"testing"
	"time"
)

// TestRetryAfter checks that the time until the pods of a node are read again is the age of the agent's answer, at least
// minRetry.
func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	for age, want := range map[time.Duration]time.Duration{0: 5 * time.Second, time.Second: 5 * time.Second, time.Minute: time.Minute} {
		e := &NotProvedError{Why: "pod db/web-1 has no address", Answered: now.Add(-age)}
		if got := e.RetryAfter(now); got != want {
			t.Errorf("RetryAfter %v after the answer: got %v, want %v", age, got, want)
		}
	}
}
