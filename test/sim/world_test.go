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

	// mu guards the fields that goroutines of the product access, such as bindingResults, misassigned, unordered and history.
	mu             sync.Mutex
	bindingResults []bindingResult
	// misassigned are the pods that, according to reports of the product, use the address of another pod. Key:
	// namespace/name.
	misassigned map[string]bool

	processes   int
	controllers []*controller
	schedulers  []*scheduler

	machines     []*machine
	machinesMade int
	jobs, rolls  int
	// requests counts the requests of the product since the last write of the product.
	requests int

	setup setup
	endpointWorld
	volumeWorld
	// replicaPods counts the pods created for the ReplicaSet. Their names contain this number and are not used again.
	replicaPods int
	// seed determines the results of choose until the next step.
	seed uint64
	// never contains the actions and faults that do not happen in this run: see choices.
	never uint64
	began time.Time
	*checks
	spell spell
	// faultsEnded is true from the end of all faults on. From then on watches deliver nothing inside a scheduling cycle, and no
	// listener begins to lag.
	faultsEnded bool
	// unordered contains lines of concurrent goroutines of the product since the last call of waitIdle, in random order.
	unordered []string
	// history is the log of the run.
	history []string
	// stats counts actions, faults, enabled options of the setup, and observed results such as "slot taken over". TestModel
	// uses one map for all its runs. Key: the name.
	stats map[string]int
}

// step is the choice of one event. The zero value chooses an event that needs no user action and no fault.
type step struct{ what, which, how, seed uint16 }

func newWorld(ctx context.Context, scheme *runtime.Scheme, s setup, stats map[string]int) *world {
	w := &world{ctx: ctx, scheme: scheme, setup: s, began: time.Now(), stats: stats, misassigned: map[string]bool{}}
	w.server = newServer(func() metav1.Time { return metav1.Now().Rfc3339Copy() })
	w.checks, w.endpointWorld, w.volumeWorld = newChecks(w), newEndpointWorld(), newVolumeWorld()
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

// logUnordered logs a line of one of several concurrent goroutines of the product: waitIdle sorts these lines and adds them
// to the history.
func (w *world) logUnordered(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unordered = append(w.unordered, fmt.Sprintf(format, args...))
}

// choose returns a number from 0 to n-1, which the seed determines.
func (w *world) choose(n int) int {
	v := int(w.seed % uint64(n))
	w.seed = w.seed/uint64(n)*6364136223846793005 + uint64(v)
	return v
}

// waitIdle waits until every goroutine of the product is blocked. It requeues activated pods, finishes the binding cycles that
// have ended, and adds the lines of logUnordered to the history.
func (w *world) waitIdle() {
	for {
		synctest.Wait()
		for _, s := range w.schedulers {
			s.requeueActivated()
		}
		w.mu.Lock()
		bindingResults, unordered := w.bindingResults, w.unordered
		w.bindingResults, w.unordered = nil, nil
		w.mu.Unlock()
		slices.Sort(unordered)
		for _, text := range unordered {
			w.logf("%s", text)
		}
		if len(bindingResults) == 0 {
			return
		}
		// The order in which the binding cycles ended is random.
		slices.SortFunc(bindingResults, func(a, b bindingResult) int { return compareText(a.s.name+keyOf(a.pod), b.s.name+keyOf(b.pod)) })
		for _, l := range bindingResults {
			l.finish()
		}
	}
}

// wrote logs and checks every write.
func (w *world) wrote(k *kind, e event, by string) {
	w.logf("%5d %s writes %s", e.rev, by, w.describe(k, e))
	w.check(k, e, by)
}

// describe returns the object of a write and its changes as text.
func (w *world) describe(k *kind, e event) string {
	text := fmt.Sprintf("%s %s", k, e.key())
	switch {
	case e.before == nil:
		text += " (new)"
	case e.after == nil:
		return text + " (deleted)"
	case e.before.GetDeletionTimestamp() == nil && e.after.GetDeletionTimestamp() != nil:
		text += " (deletion requested)"
	}
	return text + differences(e.before, e.after)
}

// actions returns the possible actions of one sort.
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
				if !p.cut && !i.stalled && i.due() {
					d = append(d, action{"watch", func() { w.logf("%s", i.step(0)) }})
				}
				for _, l := range i.lagging() {
					d = append(d, action{"handler", func() { w.logf("%s", i.catchUp(l)) }})
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
						w.logf("%s/%s reconciles %s", c, q.name, strings.TrimPrefix(r.String(), "/"))
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
					if p.starved && p.refused && !p.requeued {
						w.stats["requeued by the flush only"]++
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

// These are the sorts of actions that need no user and no fault.
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

// processActions returns the possible actions of processes that no user causes: a process starts again, is elected
// leader, or notices that it has lost its lease and exits.
func (w *world) processActions() []action {
	var d []action
	leader := map[string]bool{}
	runs := map[string]bool{}
	for _, p := range w.live() {
		role, _, _ := strings.Cut(p.name, "-")
		runs[role] = true
		leader[role] = leader[role] || p.leads && !p.lost
		// A script may need a former leader that has not noticed the loss of its lease.
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
	w.markUnreachable()
	w.waitIdle()
	return w.broken()
}

// time lets time pass. First it makes all calls of the listeners that lag, because a listener lags only for a moment.
func (w *world) time(d time.Duration) {
	w.stats["time passes"]++
	for _, p := range w.live() {
		for _, i := range p.informers {
			for _, l := range i.lagging() {
				for len(l.waiting) > 0 {
					w.logf("%s", i.catchUp(l))
				}
			}
		}
	}
	w.waitIdle()
	time.Sleep(d)
}

// progress performs an action of the drawn sort that needs no user and no fault. A call may get a fault nevertheless: see
// letThrough. If the drawn sort has no possible action, progress performs one of the next sort that has one. If no sort has
// one, time passes, a script begins, or a user acts. During a spell only time passes.
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
	// No action is possible before time passes or a user acts.
	switch {
	case w.spell.left > 0 || s.seed%4 == 0:
		w.time(w.pause())
	case s.seed%4 == 1:
		w.happen(w.scripts(), s)
	default:
		w.happen(w.userActions(), s)
	}
}

// rareActions are actions that are seldom possible. When one is possible, it is drawn more often than others, so that
// its consequences are found in fewer steps.
var rareActions = []string{"request the moved address", "force-delete pod before its address is reported", "release behind the scheduler"}

// happen performs one of the given user actions, scripts or faults. The step determines which.
func (w *world) happen(d []action, s step) {
	if len(d) == 0 {
		return
	}
	// The kind of action is drawn first, so that kinds with many objects do not crowd out the others.
	var names []string
	for _, x := range d {
		if name, _, _ := strings.Cut(x.name, ":"); !slices.Contains(names, name) && !w.excluded(name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return
	}
	name := names[int(s.which)%len(names)]
	if rare := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return !slices.Contains(rareActions, n) }); len(rare) > 0 && s.seed%8 == 0 {
		name = rare[int(s.which)%len(rare)]
	}
	d = slices.DeleteFunc(d, func(x action) bool { n, _, _ := strings.Cut(x.name, ":"); return n != name })
	chosen := d[int(s.how)%len(d)]
	w.count(chosen)
	w.logf("** %s", chosen.name)
	chosen.do()
}

// excluded reports whether the actions and faults with a name do not happen in this run.
func (w *world) excluded(name string) bool {
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
