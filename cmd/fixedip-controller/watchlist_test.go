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
		t.Errorf("%s=false became %q", watchListVariable, got)
	}
	if err := os.Unsetenv(watchListVariable); err != nil {
		t.Fatal(err)
	}
	streamInitialLists()
	// client-go reads the environment once, which is now.
	if !features.FeatureGates().Enabled(features.WatchListClient) {
		t.Error("initial lists are not streamed")
	}
}
