// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// world is the state of a run: the objects, the processes and nodes, and the history.
type world struct {
	ctx    context.Context
	scheme *runtime.Scheme
	server *server
	line   line

	// mu guards what goroutines of the product access.
	mu     sync.Mutex
	landed []landing
	// strangers are the pods that, according to the product, have the address of another pod. Key: namespace/name.
	strangers map[string]bool

	processes   int
	controllers []*controller
	schedulers  []*scheduler

	machines     []*machine
	machinesMade int
	jobs, rolls  int
	// asked counts the requests of the product since its last write.
	asked int

	setup setup
	endpointWorld
	// replicaPods counts the pods that were made for the ReplicaSet. Their names are not used again.
	replicaPods int
	// seed determines the results of choose until the next step.
	seed uint64
	// never contains the actions and faults that do not happen in this run: see choices.
	never uint64
	began time.Time
	*checks
	spell spell
	// resting is true when all faults have ended. Watches deliver nothing inside a scheduling cycle then.
	resting bool
	// overheard contains messages of goroutines of the product since the last call of settleDown. Their order is random.
	overheard []string
	// history is the log of the run.
	history []string
	// stats counts what happened. Key: the action or fault.
	stats map[string]int
}

// step is one choice of what happens next. The zero value is a step without a user action and a fault.
type step struct{ what, which, how, seed uint16 }

func newWorld(ctx context.Context, scheme *runtime.Scheme, s setup, stats map[string]int) *world {
	w := &world{ctx: ctx, scheme: scheme, setup: s, began: time.Now(), stats: stats, strangers: map[string]bool{}}
	w.server = newServer(func() metav1.Time { return metav1.Now().Rfc3339Copy() })
	w.checks, w.endpointWorld = newChecks(w), newEndpointWorld()
	w.server.wrote = w.wrote
	s.count(stats)
	for range 2 {
		w.newMachine()
	}
	w.startController()
	w.startScheduler()
	return w
}

// logf adds a line to the history.
func (w *world) logf(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.history = append(w.history, fmt.Sprintf("%8.1fs ", time.Since(w.began).Seconds())+fmt.Sprintf(format, args...))
}

// overhear adds a line of one of several goroutines of the product to the history, in settleDown.
func (w *world) overhear(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.overheard = append(w.overheard, fmt.Sprintf(format, args...))
}

// choose returns a number from 0 to n-1, which depends on the seed.
func (w *world) choose(n int) int {
	v := int(w.seed % uint64(n))
	w.seed = w.seed/uint64(n)*6364136223846793005 + uint64(v)
	return v
}

// settleDown returns when no goroutine of the product can continue by itself. It processes the binding cycles that have
// ended, and adds what was overheard to the history.
func (w *world) settleDown() {
	for {
		synctest.Wait()
		for _, s := range w.schedulers {
			s.wakeActivated()
		}
		w.mu.Lock()
		landed, overheard := w.landed, w.overheard
		w.landed, w.overheard = nil, nil
		w.mu.Unlock()
		slices.Sort(overheard)
		for _, text := range overheard {
			w.logf("%s", text)
		}
		if len(landed) == 0 {
			return
		}
		// The order in which they ended is random.
		slices.SortFunc(landed, func(a, b landing) int { return compareText(a.s.name+keyOf(a.pod), b.s.name+keyOf(b.pod)) })
		for _, l := range landed {
			l.land()
		}
	}
}

// wrote logs and checks every write.
func (w *world) wrote(k *kind, e event, by string) {
	w.logf("%5d %s writes %s", e.rev, by, w.describe(k, e))
	w.check(k, e, by)
}

// describe returns what a write has changed as text.
func (w *world) describe(k *kind, e event) string {
	text := fmt.Sprintf("%s %s", k, e.key())
	switch {
	case e.before == nil:
		text += " (new)"
	case e.after == nil:
		return text + " (gone)"
	case e.before.GetDeletionTimestamp() == nil && e.after.GetDeletionTimestamp() != nil:
		text += " (asked to go)"
	}
	return text + differences(e.before, e.after)
}

// actions returns what can happen next, of one sort.
func (w *world) actions(sort int) []action {
	now := time.Now()
	var d []action
	switch sort {
	case sortCalls:
		for _, c := range w.line.waiting() {
			if !c.waits() {
				d = append(d, action{"call", func() { w.letThrough(c, 0) }})
			}
		}
	case sortWatches:
		for _, p := range w.live() {
			for _, i := range p.informers {
				if !p.cut && !i.stalled && i.behind() {
					d = append(d, action{"watch", func() { w.logf("%s", i.step(0)) }})
				}
			}
		}
	case sortMachines:
		d = w.clusterActions(now)
		for _, m := range w.machines {
			if !w.spell.mutes(m) {
				d = append(d, m.actions(now)...)
			}
		}
	case sortQueues:
		for _, c := range w.controllers {
			if !c.leads || c.dead() {
				continue
			}
			for _, q := range c.queues {
				if !q.free() {
					continue
				}
				ready, _ := q.ready(now)
				for _, r := range ready {
					d = append(d, action{"reconcile", func() {
						w.logf("%s/%s looks at %s", c, q.name, strings.TrimPrefix(r.String(), "/"))
						q.grant(r)
					}})
				}
			}
		}
	case sortCycles:
		for _, s := range w.schedulers {
			if !s.leads || s.dead() {
				continue
			}
			ready, _ := s.ready(now)
			for _, p := range ready {
				d = append(d, action{"cycle", func() {
					if p.starved && p.refused {
						w.stats["woken by the flush alone"]++
					}
					s.cycle(p)
				}})
			}
		}
	case sortProcesses:
		d = w.processActions()
	}
	return d
}

// These are the sorts of actions that happen by themselves.
const (
	sortCalls = iota
	sortWatches
	sortMachines
	sortQueues
	sortCycles
	sortProcesses
	sorts
)

// live returns the running processes.
func (w *world) live() []*process {
	var live []*process
	for _, c := range w.controllers {
		if !c.dead() {
			live = append(live, c.process)
		}
	}
	for _, s := range w.schedulers {
		if !s.dead() {
			live = append(live, s.process)
		}
	}
	return live
}

// processActions returns what happens to processes by itself: they start again, are elected, and notice that they have lost
// their lease.
func (w *world) processActions() []action {
	var d []action
	leader := map[string]bool{}
	runs := map[string]bool{}
	for _, p := range w.live() {
		role, _, _ := strings.Cut(p.name, "-")
		runs[role] = true
		leader[role] = leader[role] || p.leads && !p.lost
		// A script may be about what a former leader does before it notices.
		if p.lost && w.spell.left == 0 {
			d = append(d, action{"notices", func() { w.logf("%s notices that it does not lead any more, and exits", p); p.kill() }})
		}
	}
	if !runs["controller"] {
		d = append(d, action{"start", func() { w.logf("%s starts", w.startController()) }})
	}
	if !runs["scheduler"] {
		d = append(d, action{"start", func() { w.logf("%s starts", w.startScheduler()) }})
	}
	for _, c := range w.controllers {
		if !c.dead() && !c.leads && c.synced() && !leader["controller"] {
			d = append(d, action{"elected", func() { w.logf("%s leads", c); c.lead() }})
		}
	}
	for _, s := range w.schedulers {
		if !s.dead() && !s.leads && s.synced() && !leader["scheduler"] {
			d = append(d, action{"elected", func() { w.logf("%s leads", s); s.leads = true }})
		}
	}
	return d
}

// pauses are the durations that can pass in one step.
var pauses = []time.Duration{100 * time.Millisecond, time.Second, time.Second, 3 * time.Second, 15 * time.Second, 40 * time.Second, 2 * time.Minute, 6 * time.Minute}

// do makes one step and returns the first violation.
func (w *world) do(s step) error {
	w.seed = uint64(s.seed)*0x9e3779b97f4a7c15>>16 | uint64(s.seed)
	n := int(s.what % 100)
	if w.spell.left > 0 {
		w.spell.left--
		n, s.how = n%84, 0
	}
	switch {
	case n < 84:
		w.progress(n, s)
	case n < 86:
		w.time(pauses[int(s.which)%len(pauses)])
	case n < 88:
		w.calm(pauses[int(s.which)%len(pauses)])
	case n < 94:
		w.happen(w.userActions(), s)
	case n < 96:
		w.happen(w.scripts(), s)
	case n < 98:
		w.happen(w.machineActions(), s)
	default:
		w.happen(w.faultActions(), s)
	}
	w.loseTouch()
	w.settleDown()
	return w.broken()
}

func (w *world) time(d time.Duration) {
	w.stats["time passes"]++
	time.Sleep(d)
}

// progress does something that happens by itself: of the drawn sort, or else of the next sort that has something.
func (w *world) progress(n int, s step) {
	sort := []int{sortCalls, sortCalls, sortCalls, sortWatches, sortWatches, sortMachines, sortMachines, sortQueues, sortQueues, sortCycles, sortCycles, sortProcesses}[n%12]
	for i := range sorts {
		sort := (sort + i) % sorts
		if sort == sortCalls {
			var calls []*call
			for _, c := range w.line.waiting() {
				if !c.waits() {
					calls = append(calls, c)
				}
			}
			if len(calls) > 0 {
				w.stats["call"]++
				w.letThrough(calls[int(s.which)%len(calls)], s.how)
				return
			}
			continue
		}
		if d := w.actions(sort); len(d) > 0 {
			chosen := d[int(s.which)%len(d)]
			w.count(chosen)
			if sort == sortMachines {
				w.logf("%s", chosen.name)
			}
			chosen.do()
			return
		}
	}
	// Nothing happens by itself before time passes or a user acts.
	switch {
	case w.spell.left > 0 || s.seed%4 == 0:
		w.time(w.pause())
	case s.seed%4 == 1:
		w.happen(w.scripts(), s)
	default:
		w.happen(w.userActions(), s)
	}
}

// telling are actions that are seldom possible. They are drawn more often when they are, so that fewer steps find what they
// cause.
var telling = []string{"ask for what lives elsewhere", "force-delete young pod", "release behind the scheduler"}

// happen does one of the actions of users or faults.
func (w *world) happen(d []action, s step) {
	if len(d) == 0 {
		return
	}
	// The kind of action is drawn first, so that kinds with many objects do not crowd out the others.
	var names []string
	for _, x := range d {
		if name, _, _ := strings.Cut(x.name, ":"); !slices.Contains(names, name) && !w.spared(name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return
	}
	name := names[int(s.which)%len(names)]
	if rare := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return !slices.Contains(telling, n) }); len(rare) > 0 && s.seed%8 == 0 {
		name = rare[int(s.which)%len(rare)]
	}
	d = slices.DeleteFunc(d, func(x action) bool { n, _, _ := strings.Cut(x.name, ":"); return n != name })
	chosen := d[int(s.how)%len(d)]
	w.count(chosen)
	w.logf("** %s", chosen.name)
	chosen.do()
}

// spared reports whether actions of a name do not happen in this run.
func (w *world) spared(name string) bool {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	return w.never>>(h.Sum32()%64)&1 != 0
}

func (w *world) count(d action) {
	name, _, found := strings.Cut(d.name, ":")
	if !found {
		name = strings.Map(func(r rune) rune {
			if r >= '0' && r <= '9' {
				return -1
			}
			return r
		}, d.name)
		if fields := strings.Fields(name); len(fields) > 2 {
			name = strings.Join(fields[:2], " ")
		}
	}
	w.stats[name]++
}

func mustPrefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func compareText(a, b string) int { return strings.Compare(a, b) }

func containsOwner(resource, owner string) bool {
	return slices.ContainsFunc(strings.Split(resource, ";"), func(field string) bool { return strings.HasSuffix(field, "="+owner) })
}
