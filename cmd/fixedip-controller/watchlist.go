// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"

	"k8s.io/client-go/features"
)

// watchListVariable is the environment variable by which client-go's feature WatchListClient is set.
const watchListVariable = "KUBE_FEATURE_" + string(features.WatchListClient)

// streamInitialLists turns on client-go's feature WatchListClient, which is off by default before v1.35, unless
// the environment sets it. An informer then receives its initial list as a stream and transforms one object at a
// time. An ordinary list from the API server's cache arrives in one answer whatever its page size is: with
// 150,000 pods that answer alone would take more memory than everything else. An API server that does not
// stream (older than v1.32, or with its feature WatchList off) is asked for that list instead.
//
// Call it before the first client is made: client-go reads the environment once.
func streamInitialLists() {
	if _, set := os.LookupEnv(watchListVariable); set {
		return
	}
	// Setenv fails only for an invalid name.
	_ = os.Setenv(watchListVariable, "true")
}
