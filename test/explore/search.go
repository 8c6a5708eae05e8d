// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"fmt"
	"slices"
	"strings"
)

// scope says what can happen.
type scope struct {
	// completes: the limit of make test is enough to visit all states.
	completes bool
	// crashes is how many processes may be killed, reboots how many nodes may be rebooted, and removals how many pods may be
	// deleted by force. stale is how often a scheduler decides from caches that are older than its decision.
	crashes, reboots, removals, stale uint8
	// pods is how many pods of each name there are, one after the other.
	pods [nameCount]int8
	// replicas is how many schedulers there are: 1 or 2.
	replicas int
	// nodeOwned are the addresses that are not available, since their nodes use them.
	nodeOwned []int8
	// lasting: no pod or workload is deleted.
	lasting bool
	// dynamic are the addresses that any pod may get at first.
	dynamic []int8
	// foreign is how many of the first pods of each name another scheduler places, which writes no entry.
	foreign [nameCount]int8
	// slots: the two names are the pods of a Deployment that hold one slot after the other.
	slots bool
	// wholeClaims: a claim is written only to the version of the pool that it was decided from.
	wholeClaims bool
	// mutation breaks one rule on purpose, so that a test can see that the search notices.
	mutation mutation
}

// emitter receives a successor and the step that leads to it.
type emitter func(step, state)

// adopts reports whether another scheduler places pods, whose addresses are adopted.
func (sc scope) adopts() bool { return sc.foreign != [nameCount]int8{} }

// stepKind is what happens in a step.
type stepKind uint8

const (
	begins stepKind = iota
	agentSees
	agentAnswers
	agentReports
	agentRestores
	agentRestarts
	nodeReboots
	cniAdd
	kubeletReports
	kubeletStops
	podDeleted
	podForceDeleted
	workloadDeleted
	workloadCreated
	foreignBinds
	schedulerLags
	schedulerDecides
	schedulerClaims
	schedulerCrashes
	schedulerCatchesUp
	schedulerBinds
	recordCreated
	recordDeleted
	recordFollows
	taskBegins
	taskWrites
	taskMarks
	taskConcludes
	taskUndoes
	taskCrashes
)

var stepNames = [...]string{
	"begins", "agent sees", "agent answers", "agent reports", "agent restores", "agent restarts", "node reboots", "CNI ADD", "kubelet reports", "kubelet stops",
	"pod deleted", "pod deleted by force", "workload deleted", "workload created", "another scheduler binds",
	"scheduler lags", "scheduler decides", "scheduler claims", "scheduler is killed", "scheduler catches up", "scheduler binds",
	"FixedIP created", "FixedIP deleted", "FixedIP follows its slot", "controller begins", "controller writes", "controller marks", "controller concludes", "controller undoes", "controller is killed",
}

// step is one request or event.
type step struct {
	kind         stepKind
	name, serial int8
	node, addr   int8
	scheduler    int8
	task         taskKind
}

func (s step) String() string {
	var b strings.Builder
	b.WriteString(stepNames[s.kind])
	switch {
	case s.kind >= schedulerLags && s.kind <= schedulerBinds:
		fmt.Fprintf(&b, " (scheduler %d)", s.scheduler)
	case s.kind >= taskBegins:
		fmt.Fprintf(&b, " (%s)", [...]string{"", "release", "restore", "expire", "withdraw", "own", "judge slot"}[s.task])
	}
	fmt.Fprintf(&b, " name %d pod %d node %d address %d", s.name, s.serial, s.node, s.addr)
	return b.String()
}

// result is what a search found.
type result struct {
	states int
	// complete: no new state is left.
	complete bool
	// depth is the number of steps of the longest history.
	depth int
	// violation is what is wrong in the last state of history; empty: no state violates an invariant.
	violation string
	history   []step
}

// visited is one state that was found, with the way back.
type visited struct {
	parent int32
	by     step
}

// search visits the states of a scope, breadth first, until no new one appears, limit is reached or an invariant is
// violated. The first violation is therefore one with the fewest steps.
func search(sc scope, limit int) result {
	first := initial(sc)
	first.createPods(sc)
	seen := map[state]struct{}{first: {}}
	back := []visited{{parent: -1}}
	frontier, ids := []state{first}, []int32{0}
	res := result{complete: true}
	for len(frontier) > 0 {
		var next []state
		var nextIDs []int32
		for i, s := range frontier {
			successors(sc, s, func(by step, t state) {
				t.createPods(sc)
				t.canonical()
				if res.violation != "" {
					return
				}
				if _, ok := seen[t]; ok {
					return
				}
				if len(seen) >= limit {
					res.complete = false
					return
				}
				seen[t] = struct{}{}
				back = append(back, visited{ids[i], by})
				id := int32(len(back) - 1)
				if why := violates(sc, t); why != "" {
					res.violation = why
					for id > 0 {
						res.history = append(res.history, back[id].by)
						id = back[id].parent
					}
					slices.Reverse(res.history)
					return
				}
				next, nextIDs = append(next, t), append(nextIDs, id)
			})
			if res.violation != "" {
				res.states = len(seen)
				return res
			}
		}
		res.depth++
		frontier, ids = next, nextIDs
	}
	res.states = len(seen)
	return res
}

// successors emits every state that is one step away.
func successors(sc scope, s state, emit emitter) {
	userSteps(sc, s, emit)
	nodeSteps(sc, s, emit)
	schedulerSteps(sc, s, emit)
	controllerSteps(sc, s, emit)
}

// canonical puts the replicas of the scheduler in order: which is which does not matter.
func (s *state) canonical() {
	a, b := &s.schedulers[0], &s.schedulers[1]
	if a.less(b) {
		*a, *b = *b, *a
	}
}

func (r *scheduler) less(o *scheduler) bool {
	key := func(x *scheduler) []byte {
		k := []byte{byte(x.phase), byte(x.name), byte(x.serial), byte(x.node), byte(x.addr)}
		for n := range x.pools {
			for a := range x.pools[n] {
				k = append(k, byte(x.pools[n][a]), byte(x.used[n][a]))
			}
		}
		for _, rec := range x.records {
			k = append(k, byte(rec.addr), bit(rec.exists), bit(rec.deleting), bit(rec.takeable))
		}
		return append(k, bit(x.standing))
	}
	return slices.Compare(key(r), key(o)) < 0
}

func bit(b bool) byte {
	if b {
		return 1
	}
	return 0
}
