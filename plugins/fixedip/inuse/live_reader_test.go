// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package inuse

import (
	"context"
	"errors"
	"maps"
	"testing"
	"testing/synctest"

	"fixedip.io/fixedip/ipam/core/pool"
)

// A node is read once for all who ask before the read has begun, and again for those who ask later: one
// that is under way may have begun before they had reason to ask.
func TestLiveReaderReadsOnceAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		underway, most, reads := map[string]int{}, 0, 0
		go1 := make(chan struct{})
		var l *liveReader
		l = newLiveReader(ctx, func(_ context.Context, node string) (pool.Node, error) {
			l.mu.Lock()
			reads++
			underway[node]++
			if underway[node] > 1 {
				t.Errorf("two reads of %s at once", node)
			}
			most = max(most, len(underway))
			l.mu.Unlock()
			<-go1
			l.mu.Lock()
			defer l.mu.Unlock()
			delete(underway, node)
			return pool.Node{Name: node}, nil
		})
		answered := map[string]int{}
		ask := func(node, who string) {
			l.ask(node, who, func(n pool.Node) {
				l.mu.Lock()
				defer l.mu.Unlock()
				answered[who+" about "+n.Name]++
			})
		}
		for _, node := range []string{"a", "b", "c", "d"} {
			ask(node, "x")
		}
		synctest.Wait()
		// No other read begins now, and that of a is under way.
		for _, node := range []string{"e", "f", "a"} {
			ask(node, "x")
			ask(node, "x")
		}
		ask("f", "y")
		synctest.Wait()
		if most != liveReaders || reads != liveReaders {
			t.Errorf("%d reads under way of %d", most, reads)
		}
		close(go1)
		synctest.Wait()
		if want := map[string]int{"x about a": 2, "x about b": 1, "x about c": 1, "x about d": 1, "x about e": 1, "x about f": 1, "y about f": 1}; reads != 7 || !maps.Equal(answered, want) {
			t.Errorf("%d reads, answers %v, want %v", reads, answered, want)
		}
		if l.readers != 0 || len(l.line)+len(l.open)+len(l.reading) > 0 {
			t.Errorf("%d readers, %v, %v, %v are left", l.readers, l.line, l.open, l.reading)
		}
		cancel()
		ask("a", "x")
		l.wait()
		if reads != 7 {
			t.Error("asked after the end")
		}
	})
}

// A read that fails is tried again, and then is answered to nobody; the end does not wait for it.
func TestLiveReaderFails(t *testing.T) {
	for name, c := range map[string]struct {
		fails    int
		answered bool
		ends     bool
		reads    int
	}{
		"once":          {fails: 1, answered: true, reads: 2},
		"for good":      {fails: 100, reads: liveTries},
		"until the end": {fails: 100, ends: true, reads: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				reads, answered := 0, false
				l := newLiveReader(ctx, func(context.Context, string) (pool.Node, error) {
					if reads++; reads <= c.fails {
						return pool.Node{}, errors.New("down")
					}
					return pool.Node{}, nil
				})
				l.ask("n", "x", func(pool.Node) { answered = true })
				synctest.Wait()
				if c.ends {
					cancel()
				}
				l.wait()
				if answered != c.answered || reads != c.reads {
					t.Errorf("answered %v after %d reads, want %v, %d", answered, reads, c.answered, c.reads)
				}
			})
		})
	}
}
