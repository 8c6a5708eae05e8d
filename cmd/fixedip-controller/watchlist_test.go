// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"testing"

	"k8s.io/client-go/features"
)

// TestStreamInitialLists checks that watchListVariable is the variable that client-go reads, and that administrators can
// turn the feature off.
func TestStreamInitialLists(t *testing.T) {
	t.Setenv(watchListVariable, "false")
	streamInitialLists()
	if got := os.Getenv(watchListVariable); got != "false" {
		t.Errorf("streamInitialLists changed %s=false to %q, want no change", watchListVariable, got)
	}
	if err := os.Unsetenv(watchListVariable); err != nil {
		t.Fatal(err)
	}
	streamInitialLists()
	// This is the first use of the feature gates in this process, so client-go reads the environment now.
	if !features.FeatureGates().Enabled(features.WatchListClient) {
		t.Error("the feature WatchListClient is disabled, want enabled")
	}
}
