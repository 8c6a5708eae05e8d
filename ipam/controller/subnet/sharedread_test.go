// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestSharedRead checks that callers that wait for a read share the next one, and that no caller gets the result of a read that
// had begun before its call.
func TestSharedRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s sharedRead[int]
		reads := 0
		read := func() (int, error) {
			reads++
			n := reads
			time.Sleep(time.Second)
			return n, nil
		}
		var callers sync.WaitGroup
		for _, c := range []struct {
			after time.Duration
			want  int
		}{{0, 1}, {100 * time.Millisecond, 2}, {500 * time.Millisecond, 2}, {900 * time.Millisecond, 2}, {1100 * time.Millisecond, 3}, {5 * time.Second, 4}} {
			callers.Go(func() {
				time.Sleep(c.after)
				if got, err := s.get(read); got != c.want || err != nil {
					t.Errorf("call after %s: got the result of read %d and error %v, want read %d", c.after, got, err, c.want)
				}
			})
		}
		callers.Wait()
	})
}

// TestSharedReadFails checks that all callers get the error of their read, also if it panics, and that the next read works.
func TestSharedReadFails(t *testing.T) {
	failed := errors.New("timeout")
	for name, c := range map[string]struct {
		read func() (int, error)
		want error
	}{
		"error": {func() (int, error) { time.Sleep(time.Second); return 0, failed }, failed},
		"panic": {func() (int, error) { time.Sleep(time.Second); panic("a fault of the decoder") }, errNoResult},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var s sharedRead[int]
				first := func() (int, error) { time.Sleep(time.Second); return 1, nil }
				var callers sync.WaitGroup
				callers.Go(func() { _, _ = s.get(first) })
				for range 2 {
					callers.Go(func() {
						time.Sleep(100 * time.Millisecond)
						defer func() { _ = recover() }()
						if _, err := s.get(c.read); !errors.Is(err, c.want) {
							t.Errorf("got error %v, want %v", err, c.want)
						}
					})
				}
				callers.Wait()
				if got, err := s.get(first); got != 1 || err != nil {
					t.Errorf("next read: got %d and error %v, want 1", got, err)
				}
			})
		})
	}
}
