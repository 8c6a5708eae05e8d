// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"fmt"
	"slices"
	"strings"
)

// scope defines which objects there are and what can happen to them.
type scope struct {
	// completes is true if all states can be visited within the limit of make test.
	completes bool
	// crashes is how many processes may be killed, and reboots how many nodes may be rebooted. removals is how many times a
	// pod may be deleted by force or a deleted workload may be created again. stale is how often a scheduler decides from
	// caches that are older than its decision.
	crashes, reboots, removals, stale uint8
	// pods is the number of pods of each name, which exist one after the other.
	pods [nameCount]int8
	// replicas is the number of schedulers: 1 or 2.
	replicas int
	// nodeOwned contains the addresses with node-owned entries, which no pod gets.
	nodeOwned []int8
	// lasting is true if no pod or workload is deleted.
	lasting bool
	// dynamic contains the addresses that have a dynamic entry at first.
	dynamic []int8
	// foreign is how many of the first pods of each name are placed by another scheduler, which writes no entry.
	foreign [nameCount]int8
	// slots is true if the two names are pods of a Deployment that hold one slot after the other.
	slots bool
	// wholeClaims is true if a claim is written only to the version of the pool that it was decided from.
	wholeClaims bool
	// mutation is a rule that is left out, so that a test can check that the search finds a violation.
	mutation mutation
}

// emitter receives a successor state and the step that leads to it.
type emitter func(step, state)

// adopts reports whether another scheduler places pods, so that addresses are adopted.
func (sc scope) adopts() bool { return sc.foreign != [nameCount]int8{} }

// stepKind is the kind of a step. Its names are in stepNames.
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

// result is the result of a search.
type result struct {
	states int
	// complete is false if states were left out because of the limit.
	complete bool
	// depth is the number of rounds of the search: round n visits the successors of the states that are n-1 steps away.
	depth int
	// violation describes the invariant that the last state of history violates; empty: no state violates one.
	violation string
	history   []step
}

// visited records how a state was first reached: by a step from the state with index parent; -1 for the initial state.
type visited struct {
	parent int32
	by     step
}

// search visits the states of a scope, breadth first, until all are visited, limit states are known, or an invariant is
// violated. A violation is therefore found with the fewest steps that lead to one.
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

// canonical sorts the replicas of the scheduler, since states that differ only in their order are equivalent.
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
