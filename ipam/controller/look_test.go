package controller

import (
	"context"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"fixedip.io/fixedip/ipam/core/identity"
)

// Nodes that ask at about the same time share an answer, and none has one from before the time that counts:
// it is that of the question, whenever the answer came.
func TestAbsences(t *testing.T) {
	clock := clocktesting.NewFakeClock(begin)
	a := newAbsences(clock)
	key := absence{identity.StatefulSets, types.NamespacedName{Namespace: "db", Name: "web"}}
	is := func(what string, want bool) {
		t.Helper()
		if got := a.has(t.Context(), key); got != want {
			t.Errorf("%s: absent %t, want %t", what, got, want)
		}
	}
	is("nobody has asked", false)
	a.ask(key)(false)
	is("it is there", false)

	answered := a.ask(key)
	waits := make(chan bool)
	go func() { waits <- a.has(context.Background(), key) }()
	clock.Step(absenceCounts - time.Millisecond)
	answered(true)
	if !<-waits {
		t.Error("who waited for the answer has not got it")
	}
	is("it was absent a moment ago", true)
	clock.Step(time.Millisecond)
	is("it was absent once", false)

	answered = a.ask(key)
	clock.Step(absenceCounts)
	is("the answer is late, and is not waited for", false)
	answered(true)
	is("the answer was late", false)
}
