// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"fixedip.io/fixedip/ipam/controller/internal/gather"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/test/controllertest"
)

// reads is a gather.Workloads without cached workloads. Live returns the workload that the test sends to answer.
type reads struct {
	gather.Workloads
	began  chan struct{}
	answer chan *identity.Workload
}

func (reads) Get(schema.GroupKind, string, string) (*identity.Workload, error) { return nil, nil }

func (r reads) Live(context.Context, schema.GroupKind, string, string) (*identity.Workload, error) {
	r.began <- struct{}{}
	return <-r.answer, nil
}

// TestNotFoundCache checks that nodes that read a workload at about the same time share the answer that it does not exist.
// The answer counts from the moment at which the read began, whenever it arrives.
func TestNotFoundCache(t *testing.T) {
	begin := controllertest.Begin
	exists := &identity.Workload{}
	for _, c := range []struct {
		name string
		// first is the answer to the first read, next is when the next read begins, and late is true if the next read
		// begins before the first answer arrives.
		first *identity.Workload
		next  time.Duration
		late  bool
		// shared is true if the next read returns the first answer without reading.
		shared bool
	}{
		{name: "it exists", first: exists},
		{name: "it was not found a moment ago", next: notFoundLasts - time.Millisecond, shared: true},
		{name: "it was not found too long ago", next: notFoundLasts},
		{name: "the answer is awaited", next: notFoundLasts - time.Millisecond, late: true, shared: true},
		{name: "the answer is late, and is not awaited", next: notFoundLasts, late: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := reads{began: make(chan struct{}, 2), answer: make(chan *identity.Workload)}
			var cache notFoundCache
			read := func(at time.Time) chan *identity.Workload {
				done := make(chan *identity.Workload, 1)
				go func() {
					w, err := cache.workload(t.Context(), r, at, objectKey{identity.StatefulSets, "db", "web"})
					if err != nil {
						t.Error(err)
					}
					done <- w
				}()
				return done
			}
			first := read(begin)
			<-r.began
			if !c.late {
				r.answer <- c.first
				<-first
			}
			next := read(begin.Add(c.next))
			if !c.shared {
				<-r.began
				r.answer <- c.first
			}
			if c.late {
				r.answer <- c.first
				<-first
			}
			if got := <-next; got != c.first {
				t.Errorf("read %v, want %v", got, c.first)
			}
			if reads := len(r.began); reads > 0 {
				t.Errorf("%d further reads", reads)
			}
		})
	}
}

// TestNotFoundCacheIsReadOnce checks that concurrent calls for a workload that does not exist read it once.
func TestNotFoundCacheIsReadOnce(t *testing.T) {
	for range 2000 {
		const callers = 8
		r := reads{began: make(chan struct{}, callers), answer: make(chan *identity.Workload)}
		close(r.answer)
		var cache notFoundCache
		var all sync.WaitGroup
		start := make(chan struct{})
		for range callers {
			all.Go(func() {
				<-start
				if w, err := cache.workload(t.Context(), r, controllertest.Begin, objectKey{identity.StatefulSets, "db", "web"}); w != nil || err != nil {
					t.Errorf("read %v, %v; want that it does not exist", w, err)
				}
			})
		}
		close(start)
		all.Wait()
		if got := len(r.began); got != 1 {
			t.Fatalf("%d calls at the same moment read the workload %d times, want once", callers, got)
		}
	}
}
