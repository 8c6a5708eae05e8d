package controller

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

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

// A pod that waits and opts out takes the address from its name by that word alone, so that it is asked for at the API
// server: the cache may be behind, and the next of the name wants its address.
func TestOptedOutPodThatWaitsIsReadLive(t *testing.T) {
	pod := func(node string, optsOut bool) *corev1.Pod {
		p := podOf(0)
		p.Spec.NodeName = node
		if optsOut {
			p.Annotations = map[string]string{identity.AnnotationEnabled: "false"}
		}
		return p
	}
	for name, c := range map[string]struct {
		cached, live *corev1.Pod
		// want is whose word counts.
		want *corev1.Pod
	}{
		"the cache is behind":       {pod("", true), pod("", false), pod("", false)},
		"it is so":                  {pod("", true), pod("", true), pod("", true)},
		"it has gone":               {pod("", true), nil, nil},
		"another node's":            {pod("other", false), pod("other", true), pod("other", false)},
		"the node's, not there now": {pod("n", true), pod("n", true), nil},
	} {
		t.Run(name, func(t *testing.T) {
			var api []client.Object
			if c.live != nil {
				api = objects(c.live)
			}
			s := newStage(t, api, objects(c.cached))
			var got corev1.Pod
			err := look{Reader: s.cached, live: s.api, node: "n"}.Get(t.Context(), client.ObjectKeyFromObject(c.cached), &got)
			if c.want == nil {
				if !apierrors.IsNotFound(err) {
					t.Errorf("%+v, %v; want none", got, err)
				}
				return
			}
			if diff := cmp.Diff(c.want, &got, cmpopts.IgnoreFields(corev1.Pod{}, "ResourceVersion", "TypeMeta")); err != nil || diff != "" {
				t.Errorf("%v, (-want +got): %s", err, diff)
			}
		})
	}
}
