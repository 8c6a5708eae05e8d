package main

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	k8sclient "github.com/cilium/cilium/pkg/k8s/client"
	ciliumclient "github.com/cilium/cilium/pkg/k8s/client/clientset/versioned"
	typedciliumv2 "github.com/cilium/cilium/pkg/k8s/client/clientset/versioned/typed/cilium.io/v2"
)

// ciliumOnly is the agent's clientset with the one part that the CRD allocator uses. Its watches show
// everything so much later.
type ciliumOnly struct {
	k8sclient.Clientset
	cilium ciliumclient.Interface
	delay  time.Duration
}

func (c ciliumOnly) CiliumV2() typedciliumv2.CiliumV2Interface {
	return lateClient{CiliumV2Interface: c.cilium.CiliumV2(), delay: c.delay}
}

type lateClient struct {
	typedciliumv2.CiliumV2Interface
	delay time.Duration
}

func (c lateClient) CiliumNodes() typedciliumv2.CiliumNodeInterface {
	return lateNodes{CiliumNodeInterface: c.CiliumV2Interface.CiliumNodes(), delay: c.delay}
}

type lateNodes struct {
	typedciliumv2.CiliumNodeInterface
	delay time.Duration
}

func (n lateNodes) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	w, err := n.CiliumNodeInterface.Watch(ctx, opts)
	if err != nil || n.delay == 0 {
		return w, err
	}
	return newLateWatch(w, n.delay), nil
}

// lateWatch hands on the events of a watch, in their order, each so much later than it came.
type lateWatch struct {
	watch.Interface
	events chan watch.Event
}

// lateEvents is how many events may be under way in a lateWatch. More hold the watch itself up, which
// makes them later still.
const lateEvents = 10_000

func newLateWatch(from watch.Interface, delay time.Duration) *lateWatch {
	type due struct {
		watch.Event
		at time.Time
	}
	l := &lateWatch{Interface: from, events: make(chan watch.Event)}
	underWay := make(chan due, lateEvents)
	go func() {
		defer close(underWay)
		for e := range from.ResultChan() {
			underWay <- due{e, time.Now().Add(delay)}
		}
	}()
	go func() {
		defer close(l.events)
		for d := range underWay {
			time.Sleep(time.Until(d.at))
			l.events <- d.Event
		}
	}()
	return l
}

// ResultChan has the events when they are due.
func (l *lateWatch) ResultChan() <-chan watch.Event { return l.events }

// Stop ends the watch. What is under way is not shown any more.
func (l *lateWatch) Stop() {
	l.Interface.Stop()
	go func() {
		for range l.events {
		}
	}()
}
