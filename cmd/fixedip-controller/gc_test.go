package main

import "testing"

func TestGCPercent(t *testing.T) {
	const mebibyte = 1 << 20
	for live, want := range map[uint64]int{
		// Go begins with a heap of nothing.
		0: 400, mebibyte: 400, 16 * mebibyte: 400, 40 * mebibyte: 160, 64 * mebibyte: 100, 100 * mebibyte: 64,
		255 * mebibyte: 25, 256 * mebibyte: 25, 300 * mebibyte: 25, 10000 * mebibyte: 25,
	} {
		if got := gcPercent(live); got != want {
			t.Errorf("%d MiB live: %d %%, want %d %%", live/mebibyte, got, want)
		}
	}
}
