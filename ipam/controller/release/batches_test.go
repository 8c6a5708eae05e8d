// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/core/identity"
)

// TestBatchWait checks the time for which a batch waits after a series of events on its node.
func TestBatchWait(t *testing.T) {
	identityOf := func(i int) client.ObjectKey {
		return client.ObjectKey{Namespace: "db", Name: fmt.Sprintf("web-%d", i)}
	}
	// moment is a moment at which identities join the batch and a reconcile finds terminating pods.
	type moment struct {
		// after is the time since the previous moment.
		after             time.Duration
		join, terminating []int
	}
	long := func() []moment {
		events := []moment{{join: []int{0}, terminating: []int{1}}}
		for i := range 12 {
			events = append(events, moment{after: 2400 * time.Millisecond, join: []int{10 + i}, terminating: []int{1}})
		}
		return events
	}()
	for name, c := range map[string]struct {
		moments []moment
		// want is the time that wait returns at the last moment.
		want time.Duration
	}{
		"one identity":                                         {[]moment{{join: []int{0}}}, quietWindow},
		"another identity joins":                               {[]moment{{join: []int{0}}, {after: 20 * time.Millisecond, join: []int{1}}}, quietWindow},
		"the same identity joins again":                        {[]moment{{join: []int{0}}, {after: 20 * time.Millisecond, join: []int{0}}}, quietWindow - 20*time.Millisecond},
		"another pod is terminating":                           {[]moment{{join: []int{0}, terminating: []int{1}}}, joinWindow},
		"a pod ended, and another is terminating":              {[]moment{{join: []int{0}, terminating: []int{1, 2}}, {after: 600 * time.Millisecond, join: []int{1}, terminating: []int{2}}}, joinWindow},
		"no other pod has ended for a while":                   {[]moment{{join: []int{0}, terminating: []int{1}}, {after: 600 * time.Millisecond, terminating: []int{1}}}, joinWindow - 600*time.Millisecond},
		"the last pod ended and joined":                        {[]moment{{join: []int{0}, terminating: []int{1}}, {after: time.Millisecond, join: []int{1}}}, 0},
		"the last pod ended and has not joined":                {[]moment{{join: []int{0}, terminating: []int{1}}, {after: time.Millisecond}}, lateWindow - time.Millisecond},
		"the last pod ended and is expected by its workload":   {[]moment{{join: []int{0}, terminating: []int{1}}, {after: 300 * time.Millisecond}}, 0},
		"pods end one after another for longer than maxWindow": {long, maxWindow - 12*2400*time.Millisecond},
		"no batch": {[]moment{{terminating: []int{1}}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			now := clocktesting.NewFakeClock(time.Unix(0, 0))
			b := &Batches{Clock: now}
			var got time.Duration
			for _, m := range c.moments {
				now.Step(m.after)
				for _, i := range m.join {
					b.add("n", identityOf(i))
				}
				var terminating []client.ObjectKey
				for _, i := range m.terminating {
					terminating = append(terminating, identityOf(i))
				}
				got = b.wait("n", terminating)
			}
			if got != c.want {
				t.Errorf("got %v until the batch is complete, want %v", got, c.want)
			}
		})
	}
}

// BenchmarkTake measures one batch of one identity while the releases of 10,000 other identities are in flight.
func BenchmarkTake(b *testing.B) {
	batches := &Batches{Clock: clock.RealClock{}}
	for i := range 10000 {
		batches.add("other", client.ObjectKey{Namespace: "db", Name: fmt.Sprintf("web-%d", i)})
	}
	batches.take("other")
	for b.Loop() {
		batches.add("n", client.ObjectKey{Namespace: "db", Name: "own"})
		_, landed := batches.take("n")
		landed()
	}
}

// BenchmarkNotFoundCache measures the lookup of one workload while the results of 1,000 workloads are stored.
func BenchmarkNotFoundCache(b *testing.B) {
	var cache notFoundCache
	now := time.Now()
	workload := func(i int) objectKey { return objectKey{identity.StatefulSets, "db", fmt.Sprintf("web-%d", i)} }
	for i := range 1000 {
		cache.begin(workload(i), &lookup{began: now})
	}
	key := workload(0)
	for b.Loop() {
		cache.begin(key, &lookup{began: now})
	}
}

// TestNotFoundCacheRemoves checks that outdated reads are not used and do not accumulate.
func TestNotFoundCacheRemoves(t *testing.T) {
	var cache notFoundCache
	now := time.Now()
	for i := range 10 {
		key := objectKey{identity.StatefulSets, "db", fmt.Sprintf("web-%d", i)}
		if got := cache.begin(key, &lookup{began: now.Add(time.Duration(i) * notFoundLasts)}); got != nil {
			t.Errorf("read %d: got an earlier read, want none", i)
		}
	}
	if got := len(cache.lookups); got != 1 {
		t.Errorf("got %d stored reads, want 1", got)
	}
}
