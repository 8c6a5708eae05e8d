// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package barrier

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/events"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// world is a CiliumNode and the Service that asks its agent. It implements Pools.
type world struct {
	*testing.T
	clock  *testingclock.FakePassiveClock
	events *events.FakeRecorder
	s      *Service
	// node is the CiliumNode; nil: there is none.
	node *pool.NodePool
	// probes is the number of probes that were written.
	probes int
	delay  time.Duration
	fail   error
	// during is called while a probe is written, and reading while the CiliumNode is read.
	during, reading func()
	// notified are the keys of the requests whose callers were notified.
	notified []string
}

func newWorld(t *testing.T) *world {
	w := &world{T: t, clock: testingclock.NewFakePassiveClock(time.Unix(1_000_000, 0)), events: events.NewFakeRecorder(10)}
	w.node = &pool.NodePool{Name: "n", UID: "uid", Generation: 3, HasPool: true, HasUsed: true, Used: map[netip.Addr]string{netip.MustParseAddr("10.0.1.1"): "router"}}
	w.restart()
	return w
}

// restart simulates a restart of the controller: it replaces the Service.
func (w *world) restart() {
	w.s = New(w, w.events, w.clock)
}

func (w *world) Get(context.Context, string) (pool.NodePool, error) {
	if w.node == nil {
		return pool.NodePool{}, ciliumpool.ErrGone
	}
	n := *w.node
	n.Probes = slices.Clone(n.Probes)
	if w.reading != nil {
		w.reading()
	}
	return n, nil
}

func (w *world) WriteProbe(_ context.Context, n pool.NodePool, probe netip.Addr) (pool.NodePool, error) {
	if w.during != nil {
		w.during()
	}
	if w.fail != nil {
		return pool.NodePool{}, w.fail
	}
	w.probes++
	w.node.Probes = append(w.node.Probes, probe)
	w.node.ResourceVersion = fmt.Sprint("after probe ", w.probes)
	return w.Get(context.Background(), n.Name)
}

func (w *world) Delay(string) time.Duration { return w.delay }

func (w *world) ask(key string) bool {
	evidence, answered := w.s.Ask("n", key, func() { w.notified = append(w.notified, key) })
	ok := !answered.IsZero()
	if ok && evidence.Node != "n" {
		w.Errorf("request %s: got evidence of node %q, want n", key, evidence.Node)
	}
	return ok
}

func (w *world) reconcile() reconcile.Result {
	w.Helper()
	result, err := w.s.Reconcile(w.Context(), source.ForName("n"))
	if err != nil {
		w.Fatal(err)
	}
	return result
}

// answer simulates a report of the agent: it removes all probes.
func (w *world) answer() { w.node.Probes = nil }

func (w *world) want(key string, answered bool) {
	w.Helper()
	if got := w.ask(key); got != answered {
		w.Errorf("request %s: got answered = %t, want %t", key, got, answered)
	}
}

// wantWrites checks the number of probes that were written.
func (w *world) wantWrites(n int) {
	w.Helper()
	if w.probes != n {
		w.Errorf("got %d probes written, want %d", w.probes, n)
	}
}

func (w *world) wantNotified(keys ...string) {
	w.Helper()
	slices.Sort(w.notified)
	if !slices.Equal(w.notified, keys) {
		w.Errorf("got notified callers %v, want %v", w.notified, keys)
	}
	w.notified = nil
}

func TestService(t *testing.T) {
	for name, run := range map[string]func(w *world){
		"one barrier serves all requests that were made before its probe": func(w *world) {
			w.want("a", false)
			w.want("b", false)
			w.want("a", false)
			w.reconcile()
			w.want("a", false)
			w.reconcile()
			w.wantWrites(1)
			w.wantNotified()
			w.answer()
			w.reconcile()
			w.wantNotified("a", "b")
			w.want("a", true)
			w.want("b", true)
			w.wantWrites(1)
		},
		"a later request waits for the next barrier": func(w *world) {
			w.want("a", false)
			w.reconcile()
			w.want("b", false)
			w.answer()
			w.reconcile()
			w.wantNotified("a")
			w.want("b", false)
			w.wantWrites(2)
			w.answer()
			w.reconcile()
			w.want("b", true)
		},
		"a request that is made while the probe is written waits for the next barrier": func(w *world) {
			w.want("a", false)
			w.during = func() { w.want("b", false) }
			w.reconcile()
			w.during = nil
			w.answer()
			w.reconcile()
			w.wantNotified("a")
			w.want("b", false)
		},
		"an answer is returned again until it expires": func(w *world) {
			w.want("a", false)
			w.reconcile()
			w.answer()
			w.reconcile()
			w.want("a", true)
			w.want("a", true)
			w.clock.SetTime(w.clock.Now().Add(remembered))
			w.reconcile()
			if len(w.s.nodes) != 0 {
				w.Errorf("got %d nodes in the Service, want none", len(w.s.nodes))
			}
			w.want("a", false)
			w.wantWrites(1)
		},
		"a request whose answer was forgotten needs another barrier": func(w *world) {
			w.want("a", false)
			w.reconcile()
			w.answer()
			w.reconcile()
			w.want("a", true)
			w.s.Forget("n", "a")
			w.want("a", false)
			w.reconcile()
			w.wantWrites(2)
		},
		"the report of an agent that has not restored its endpoints is no answer": func(w *world) {
			w.want("a", false)
			w.reconcile()
			used := w.node.Used
			w.answer()
			w.node.Used, w.node.Unreported = nil, true
			w.reconcile()
			w.want("a", false)
			if why := w.s.nodes["n"].waitReason("n"); !strings.Contains(why, "restore its endpoints") {
				w.Errorf("got reason %q, want one that contains %q", why, "restore its endpoints")
			}
			w.node.Used, w.node.Unreported = used, false
			w.reconcile()
			w.want("a", true)
			w.wantWrites(1)
		},
		"a CiliumNode that was recreated gets another probe": func(w *world) {
			w.want("a", false)
			w.reconcile()
			w.answer()
			w.node.UID = "other"
			w.reconcile()
			w.wantNotified()
			w.wantWrites(2)
			w.answer()
			w.reconcile()
			w.want("a", true)
		},
		"the requests for a node whose CiliumNode was deleted are dropped": func(w *world) {
			w.want("a", false)
			w.reconcile()
			w.want("b", false)
			w.node = nil
			w.reconcile()
			w.wantNotified("a", "b")
			if len(w.s.nodes) != 0 {
				w.Errorf("got %d nodes in the Service, want none", len(w.s.nodes))
			}
		},
		"no probe is written while the CiliumNode has no pool": func(w *world) {
			w.node.HasPool = false
			w.want("a", false)
			w.reconcile()
			w.wantWrites(0)
			w.node.HasPool = true
			w.reconcile()
			w.wantWrites(1)
		},
		"a probe is written only when the rate limit allows it": func(w *world) {
			w.delay = 7 * time.Second
			w.want("a", false)
			if got := w.reconcile(); got.RequeueAfter != 7*time.Second {
				w.Errorf("got RequeueAfter %s, want 7s", got.RequeueAfter)
			}
			w.wantWrites(0)
			w.delay = 0
			w.reconcile()
			w.wantWrites(1)
		},
		"a failed write of the probe is retried": func(w *world) {
			w.want("a", false)
			w.fail = errors.New("connection reset")
			if _, err := w.s.Reconcile(w.Context(), source.ForName("n")); err == nil {
				w.Error("Reconcile succeeded although the write of the probe failed")
			}
			w.fail = nil
			w.reconcile()
			w.answer()
			w.reconcile()
			w.want("a", true)
		},
		"after a restart of the controller the request needs another barrier": func(w *world) {
			w.want("a", false)
			w.reconcile()
			w.restart()
			w.answer()
			w.want("a", false)
			w.reconcile()
			w.want("a", false)
			w.answer()
			w.reconcile()
			w.want("a", true)
			w.wantWrites(2)
		},
		"a probe from before a restart of the controller is joined": func(w *world) {
			w.want("a", false)
			w.reconcile()
			w.restart()
			w.want("a", false)
			w.reconcile()
			w.answer()
			w.reconcile()
			w.want("a", true)
			w.wantWrites(1)
		},
		"the probe of another controller is joined and stays until the agent reports": func(w *world) {
			other := pool.Probe(7)
			w.node.Probes = []netip.Addr{other}
			w.want("a", false)
			w.reconcile()
			w.reconcile()
			w.want("a", false)
			if !slices.Equal(w.node.Probes, []netip.Addr{other}) {
				w.Errorf("got probes %v, want only %v", w.node.Probes, other)
			}
			w.answer()
			w.reconcile()
			w.want("a", true)
			w.wantWrites(0)
		},
		"a request that is made while the CiliumNode is read joins no probe": func(w *world) {
			w.node.Probes = []netip.Addr{pool.Probe(7)}
			w.want("a", false)
			w.reading = func() { w.want("b", false) }
			w.reconcile()
			w.reading = nil
			w.answer()
			w.reconcile()
			w.wantNotified("a")
			w.want("b", false)
			w.wantWrites(1)
		},
		"an agent that does not answer is reported once, and may answer later": func(w *world) {
			w.want("a", false)
			w.reconcile()
			for range 3 {
				w.clock.SetTime(w.clock.Now().Add(overdue))
				w.reconcile()
			}
			if pending, late := w.s.Overdue(); pending != 1 || late != 1 {
				w.Errorf("got %d pending and %d overdue, want 1 and 1", pending, late)
			}
			if n := len(w.events.Events); n != 1 {
				w.Errorf("got %d events, want one", n)
			} else if e := <-w.events.Events; !strings.Contains(e, "AgentNotAnswering") {
				w.Errorf("got event %q, want reason AgentNotAnswering", e)
			}
			w.wantWrites(1)
			w.answer()
			w.reconcile()
			w.want("a", true)
			if pending, late := w.s.Overdue(); pending != 0 || late != 0 {
				w.Errorf("got %d pending and %d overdue, want none", pending, late)
			}
		},
		"an answer that no caller reads expires": func(w *world) {
			w.want("a", false)
			w.reconcile()
			w.answer()
			result := w.reconcile()
			w.clock.SetTime(w.clock.Now().Add(result.RequeueAfter))
			w.reconcile()
			if len(w.s.nodes) != 0 {
				w.Errorf("got %d nodes in the Service, want none", len(w.s.nodes))
			}
		},
		"the evidence is about the pool at the time of the probe": func(w *world) {
			a := netip.MustParseAddr("10.0.1.7")
			w.node.Entries = map[netip.Addr]pool.Entry{a: {}}
			w.want("a", false)
			w.reconcile()
			w.answer()
			w.node.Generation, w.node.Entries = 4, map[netip.Addr]pool.Entry{a: pool.ForOwner("db/mysql-0")}
			w.reconcile()
			evidence, _ := w.s.Ask("n", "a", func() {})
			if want := (map[netip.Addr]pool.Entry{a: {}}); evidence.Generation != 3 || !reflect.DeepEqual(evidence.Entries, want) {
				w.Errorf("got generation %d and entries %v, want 3 and %v", evidence.Generation, evidence.Entries, want)
			}
		},
	} {
		t.Run(name, func(t *testing.T) { run(newWorld(t)) })
	}
}

// TestChanged checks that Changed stores nothing for a node without barrier requests.
func TestChanged(t *testing.T) {
	w := newWorld(t)
	for i := range 1000 {
		w.s.Changed(fmt.Sprint("node-", i))
	}
	if len(w.s.nodes) != 0 {
		t.Errorf("got %d nodes in the Service, want none", len(w.s.nodes))
	}
}
