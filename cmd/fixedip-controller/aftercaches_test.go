// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// TestAfterCaches checks that the function is called once, also on a replica that is not the leader.
func TestAfterCaches(t *testing.T) {
	calls := 0
	var r manager.Runnable = afterCaches(func() { calls++ })
	if err := r.Start(context.Background()); err != nil || calls != 1 {
		t.Errorf("got error %v and %d calls, want one call", err, calls)
	}
	if l, ok := r.(manager.LeaderElectionRunnable); !ok || l.NeedLeaderElection() {
		t.Error("only the leader would call the function")
	}
}
