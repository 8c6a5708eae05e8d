// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"runtime"
	"testing"
)

func TestGrowth(t *testing.T) {
	const mebibyte = 1 << 20
	for live, want := range map[uint64]int{
		0:              50,
		100 * mebibyte: 50,
		266 * mebibyte: 50,
		300 * mebibyte: 33,
		320 * mebibyte: 25,
		399 * mebibyte: 25,
		400 * mebibyte: 25,
		900 * mebibyte: 25,
	} {
		if got := growth(live); got != want {
			t.Errorf("live heap of %d MiB: got a growth of %d %%, want %d %%", live/mebibyte, got, want)
		}
	}
}

// TestAfterEachCollection checks that the function is called after every collection, not only after the first.
func TestAfterEachCollection(t *testing.T) {
	called := make(chan struct{}, 100)
	afterEachCollection(func() {
		select {
		case called <- struct{}{}:
		default:
		}
	})
	for range 3 {
		runtime.GC()
		<-called
	}
}
