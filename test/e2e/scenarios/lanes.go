// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"fixedip.io/fixedip/hack/realcluster"
	"fixedip.io/fixedip/hack/realcluster/layout"
)

// podLanes is the number of scenarios with the need ownPods that run at the same time. Scenarios that need the third node
// run in one more lane.
const podLanes = 2

// scenarioTimeout is the time limit of a scenario. stepTimeout, the limit of a step without progress, is shorter.
const scenarioTimeout = 10 * time.Minute

// pairTime is an upper limit of the time that the scenario ratioScenario needs for one pair of replacements.
const pairTime = 5 * time.Second

// timeout returns the time limit of the scenario. The limit of ratioScenario grows with pairs, the value of the flag -pairs.
func (s scenario) timeout(pairs int) time.Duration {
	if s.name == ratioScenario {
		return scenarioTimeout + time.Duration(secondLook*pairs)*pairTime
	}
	return scenarioTimeout
}

// runAll runs the selected scenarios in two passes, with kills of our programs in the second one; see chosen. Each pass runs
// first the scenarios that can run in parallel, and then, one by one, those that need the whole cluster. Two more passes run
// the scenarios that leave a changed cluster behind. A failed scenario does not end the run.
func (t *trial) runAll(ctx context.Context) {
	t.runTwice(ctx, []need{ownPods, thirdNode, wholeCluster}, func(kills bool, m *killer) {
		t.runParallel(ctx, kills, m)
		t.runLane(ctx, kills, m, wholeCluster)
	})
	t.runTwice(ctx, []need{changedCluster}, func(kills bool, m *killer) {
		t.runLane(ctx, kills, m, changedCluster)
	})
	end, err := t.watch.finish(ctx)
	t.results.watch = end
	t.record(outcome{name: throughout, detail: end.String(), err: err}, throughout)
}

// runTwice calls run for the pass without kills, and again for the pass with kills while our programs are killed; see chosen.
// It leaves out the second call if the flag -kills is noKills, or if no selected scenario with these needs allows kills.
func (t *trial) runTwice(ctx context.Context, needs []need, run func(kills bool, m *killer)) {
	run(false, nil)
	if t.options.kills == noKills || len(t.chosen(true, needs...)) == 0 {
		return
	}
	m := t.startKiller(ctx)
	run(true, m)
	if err := m.stop(ctx); err != nil && ctx.Err() == nil {
		t.record(outcome{name: "killing our programs", err: err}, "killing")
	}
}

// chosen returns the selected scenarios with these needs for the pass with or without kills. The pass with kills has
// only scenarios that allow kills. With killsOnly, the pass without kills has only scenarios that do not allow kills.
// With native routing, scenarios that need a tunnel are left out. If the flag -pairs is 0, ratioScenario is left out.
func (t *trial) chosen(kills bool, needs ...need) []scenario {
	var list []scenario
	for _, n := range needs {
		for _, s := range scenarios {
			if kills && !s.kills || !kills && s.kills && t.options.kills == killsOnly {
				continue
			}
			if s.name == ratioScenario && t.options.pairs == 0 {
				continue
			}
			if s.needs == n && t.options.only.MatchString(s.name) && !(s.tunnel && t.options.routing == layout.Native) {
				list = append(list, s)
			}
		}
	}
	return list
}

// runParallel runs the scenarios that need only pods or the third node, in parallel lanes.
func (t *trial) runParallel(ctx context.Context, kills bool, m *killer) {
	queue := make(chan scenario)
	var lanes sync.WaitGroup
	for range podLanes {
		lanes.Go(func() {
			for s := range queue {
				t.runOne(ctx, s, m, calmNodes)
			}
		})
	}
	lanes.Go(func() { t.runLane(ctx, kills, m, thirdNode) })
	for _, s := range t.chosen(kills, ownPods) {
		queue <- s
	}
	close(queue)
	lanes.Wait()
}

// runLane runs the scenarios with this need, one after the other.
func (t *trial) runLane(ctx context.Context, kills bool, m *killer, n need) {
	nodes := []string{calmNode, otherNode, victimNode, spareNode}
	if n == thirdNode {
		nodes = []string{victimNode}
	}
	for _, s := range t.chosen(kills, n) {
		t.runOne(ctx, s, m, nodes)
	}
}

// runOne restarts each program of the nodes that has exited, and then runs a scenario in its own namespace. If m is not
// nil, the scenario starts shortly before m kills our programs. If the time of the flag -limit is over, runOne leaves the
// scenario out.
func (t *trial) runOne(parent context.Context, s scenario, m *killer, nodes []string) {
	if s.name == ratioScenario {
		t.options.machine.Lock()
		defer t.options.machine.Unlock()
	} else {
		t.options.machine.RLock()
		defer t.options.machine.RUnlock()
	}
	if parent.Err() != nil {
		return
	}
	if limit := t.options.limit; limit > 0 && time.Since(t.options.began) > limit {
		t.leaveOut(s.name)
		return
	}
	ctx, cancel := context.WithTimeoutCause(parent, s.timeout(t.options.pairs), fmt.Errorf("the scenario is not done after %s", s.timeout(t.options.pairs)))
	defer cancel()
	name := s.name
	if m != nil {
		name = killed(name)
	}
	namespace := strings.Trim(notInNames.ReplaceAllString(strings.ToLower(name), "-"), "-")
	if err := t.supervise(ctx, nodes); err != nil {
		t.record(outcome{name: "before " + name, err: err}, namespace)
	}
	sc := &scene{trial: t, namespace: namespace}
	err := sc.open(ctx)
	if err == nil && m != nil {
		err = m.next(ctx)
	}
	t.watch.enter(name)
	o := outcome{name: name, began: time.Now()}
	if err == nil {
		err = s.run(ctx, sc)
	}
	o.took = time.Since(o.began)
	o.detail = sc.note
	// Violations seen during the scenario are part of its result.
	if broken := t.newViolations(); len(broken) > 0 {
		err = errors.Join(err, fmt.Errorf("violations during the scenario:\n%s", strings.Join(broken, "\n")))
	}
	t.watch.leave(name)
	o.err = err
	t.record(o, namespace)
	if parent.Err() != nil {
		return // the cluster is about to end
	}
	if err := sc.close(context.WithoutCancel(ctx)); err != nil {
		// The archive of a failed scenario keeps its name.
		t.record(outcome{name: name + ": tidying up", err: err}, namespace+"-tidying-up")
	}
}

// killed returns the name of a scenario that runs while our programs are killed.
func killed(name string) string { return name + ", our programs killed" }

// supervise restarts each program of the nodes that has exited, so that the next scenario finds it running. It skips nodes
// that are powered off. It returns an error for each program that has exited, and if a restart fails or the node does not
// become ready afterwards.
func (t *trial) supervise(ctx context.Context, nodes []string) error {
	var errs []error
	for _, name := range nodes {
		if init := t.cluster.Process(name); init == nil || !init.Running() {
			continue
		}
		node := t.cluster.Node(name)
		ended := false
		for _, part := range []realcluster.Part{realcluster.Containerd, realcluster.Kubelet, realcluster.Agent} {
			if p := node.Process(part); p != nil && !p.Running() {
				ended = true
				errs = append(errs, fmt.Errorf("the %s of node %s has ended: %s; the end of its log:\n%s", part, name, p.ExitState(), p.LogTail()), node.Start(ctx, part))
			}
		}
		if ended {
			errs = append(errs, t.nodeReady(ctx, name, true))
		}
	}
	return errors.Join(errs...)
}
