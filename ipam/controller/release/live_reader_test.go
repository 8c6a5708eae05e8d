// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/test/controllertest"
)

// Nodes that read a workload at about the same time share an answer. It counts from the moment at which the read began,
// whenever the answer came.
func TestNotFoundCache(t *testing.T) {
	clock := clocktesting.NewFakeClock(controllertest.Begin)
	c := newNotFoundCache(clock)
	key := objectKey{identity.StatefulSets, types.NamespacedName{Namespace: "db", Name: "web"}}
	is := func(what string, want bool) {
		t.Helper()
		if got := c.wasNotFound(t.Context(), key); got != want {
			t.Errorf("%s: not found %t, want %t", what, got, want)
		}
	}
	answer := func(l *lookup, absent bool) {
		if !absent {
			l.found = &identity.Workload{}
		}
		close(l.done)
	}
	is("before the first read", false)
	answer(c.begin(key), false)
	is("it exists", false)

	l := c.begin(key)
	waits := make(chan bool)
	go func() { waits <- c.wasNotFound(context.Background(), key) }()
	clock.Step(notFoundLasts - time.Millisecond)
	answer(l, true)
	if !<-waits {
		t.Error("a read that waited for the answer did not get it")
	}
	is("a moment ago", true)
	clock.Step(time.Millisecond)
	is("too long ago", false)

	l = c.begin(key)
	clock.Step(notFoundLasts)
	is("the answer is late, and is not waited for", false)
	answer(l, true)
	is("the answer was late", false)
}
