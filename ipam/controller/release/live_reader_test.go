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

// reads is a gather.Workloads without cached workloads. Live returns the workload that the test sends to result.
type reads struct {
	gather.Workloads
	began  chan struct{}
	result chan *identity.Workload
}

func (reads) Get(schema.GroupKind, string, string) (*identity.Workload, error) { return nil, nil }

func (r reads) Live(context.Context, schema.GroupKind, string, string) (*identity.Workload, error) {
	r.began <- struct{}{}
	return <-r.result, nil
}

// TestNotFoundCache checks that the nodes that read a workload at about the same time share the result if the workload does not
// exist. The age of a result counts from the time at which the read began.
func TestNotFoundCache(t *testing.T) {
	begin := controllertest.Begin
	exists := &identity.Workload{}
	for _, c := range []struct {
		name string
		// first is the result of the first read. next is the time from the start of the first read to the start of the
		// next read. late is true if the next read begins before the first read has a result.
		first *identity.Workload
		next  time.Duration
		late  bool
		// shared is true if the next read returns the first result without a read at the API server.
		shared bool
	}{
		{name: "the workload exists", first: exists},
		{name: "not found less than notFoundLasts ago", next: notFoundLasts - time.Millisecond, shared: true},
		{name: "not found notFoundLasts ago", next: notFoundLasts},
		{name: "the first read began less than notFoundLasts ago and has no result yet", next: notFoundLasts - time.Millisecond, late: true, shared: true},
		{name: "the first read began notFoundLasts ago and has no result yet", next: notFoundLasts, late: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := reads{began: make(chan struct{}, 2), result: make(chan *identity.Workload)}
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
				r.result <- c.first
				<-first
			}
			next := read(begin.Add(c.next))
			if !c.shared {
				<-r.began
				r.result <- c.first
			}
			if c.late {
				r.result <- c.first
				<-first
			}
			if got := <-next; got != c.first {
				t.Errorf("next read: got workload %v, want %v", got, c.first)
			}
			if reads := len(r.began); reads > 0 {
				t.Errorf("got %d further reads at the API server, want none", reads)
			}
		})
	}
}

// TestNotFoundCacheIsReadOnce checks that concurrent calls for a workload that does not exist read it once.
func TestNotFoundCacheIsReadOnce(t *testing.T) {
	for range 2000 {
		const callers = 8
		r := reads{began: make(chan struct{}, callers), result: make(chan *identity.Workload)}
		close(r.result)
		var cache notFoundCache
		var all sync.WaitGroup
		start := make(chan struct{})
		for range callers {
			all.Go(func() {
				<-start
				if w, err := cache.workload(t.Context(), r, controllertest.Begin, objectKey{identity.StatefulSets, "db", "web"}); w != nil || err != nil {
					t.Errorf("got workload %v and error %v, want nil and no error", w, err)
				}
			})
		}
		close(start)
		all.Wait()
		if got := len(r.began); got != 1 {
			t.Fatalf("got %d reads at the API server for %d concurrent calls, want one", got, callers)
		}
	}
}
