// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package explore

import (
	"fmt"
	"slices"
	"strings"
)

// scope defines the objects of a search and limits the events that can happen to them.
type scope struct {
	// completes is true if all states can be visited within the limit of make test.
	completes bool
	// crashes is the maximum number of killed processes, and reboots that of reboots of nodes. removals is the maximum number
	// of forced deletions of pods and of creations of deleted workloads together. stale is the maximum number of decisions of
	// schedulers from caches that are older than the decision.
	crashes, reboots, removals, stale uint8
	// pods is the number of pods of each name. They exist one after the other.
	pods [nameCount]int8
	// replicas is the number of schedulers: 1 or 2.
	replicas int
	// nodeOwned contains the addresses with node-owned entries, which no pod gets.
	nodeOwned []int8
	// lasting is true if no pod or workload is deleted.
	lasting bool
	// dynamic contains the addresses that have a dynamic entry in the initial state.
	dynamic []int8
	// foreign is the number of pods of each name, counted from the first, that another scheduler places. That
	// scheduler writes no entry.
	foreign [nameCount]int8
	// slots is true if the two names are those of pods of a Deployment: after one pod has stopped, the other may take
	// over its slot.
	slots bool
	// wholeClaims is true if a claim is written only to the version of the pool that it was decided from.
	wholeClaims bool
	// mutation is a rule that the search leaves out, so that a test can check that the search finds a violation.
	mutation mutation
}

// emitter receives a step and the state after it.
type emitter func(step, state)

// adopts reports whether another scheduler places pods. The addresses of these pods are adopted.
func (sc scope) adopts() bool { return sc.foreign != [nameCount]int8{} }

// stepKind is the kind of a step. stepNames contains the name of each kind.
type stepKind uint8

const (
	begins stepKind = iota
	agentSees
	agentAcknowledges
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
	taskProbes
	taskReads
	taskConcludes
	taskUndoes
	taskCrashes
)

var stepNames = [...]string{
	"begins", "agent sees the CiliumNode", "agent acknowledges the probe", "agent reports", "agent restores its endpoints", "agent restarts", "node reboots", "CNI ADD", "kubelet reports the address", "kubelet stops the pod",
	"pod deleted", "pod deleted by force", "workload deleted", "workload created", "another scheduler binds the pod",
	"scheduler lags", "scheduler decides", "scheduler claims", "scheduler is killed", "scheduler catches up", "scheduler binds the pod",
	"FixedIP created", "FixedIP deleted", "FixedIP follows its slot", "controller begins", "controller writes", "controller sends or joins a probe", "controller reads the pods", "controller concludes", "controller undoes", "controller is killed",
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
	fmt.Fprintf(&b, ": name %d, pod %d, node %d, address %d", s.name, s.serial, s.node, s.addr)
	return b.String()
}

// result is the result of a search.
type result struct {
	states int
	// complete is false if states were left out because of the limit.
	complete bool
	// depth is the number of completed rounds. Round n visits the states that are n steps away from the initial state. The
	// last round of a search without a violation finds no new state.
	depth int
	// violation describes the invariant that the state after history violates; empty if no visited state violates one.
	violation string
	history   []step
}

// visited contains the step by which a state was first reached, and the index of the state before that step. The index is -1
// for the initial state.
type visited struct {
	parent int32
	by     step
}

// search visits the states of a scope, breadth first, until all are visited or an invariant is violated. It visits at most
// limit states. Because of the order, the history of a violation has the fewest possible steps.
func search(sc scope, limit int) result {
	first := initial(sc)
	first.createPods(sc)
	seen := map[state]struct{}{first: {}}
	back := []visited{{parent: -1}}
	frontier, ids := []state{first}, []int32{0}
	res := result{complete: true, violation: violates(sc, first)}
	if res.violation != "" {
		res.states = len(seen)
		return res
	}
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

// canonical sorts the replicas of the scheduler, because states that differ only in the order of the replicas are
// equivalent.
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
		return append(k, bit(x.entryExists))
	}
	return slices.Compare(key(r), key(o)) < 0
}

func bit(b bool) byte {
	if b {
		return 1
	}
	return 0
}
