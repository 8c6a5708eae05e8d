// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"net/http"
	"strings"
	"testing"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/hack/product"
	"fixedip.io/fixedip/hack/witness"
)

// bindGate is a proxy in front of the API server that reports each bind, and holds it until the scheduler closes the
// connection.
type bindGate struct {
	kubeconfig string
	// arrived receives the pod name of each bind.
	arrived chan string
}

func (e *env) bindGate() *bindGate {
	e.t.Helper()
	g := &bindGate{arrived: make(chan string, 16)}
	g.kubeconfig = e.schedulerThrough(func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/binding") {
			parts := strings.Split(r.URL.Path, "/")
			g.arrived <- parts[len(parts)-2]
			<-r.Context().Done()
			return
		}
		pass.ServeHTTP(w, r)
	})
	return g
}

// schedulerThrough returns the kubeconfig of a scheduler whose requests go through a proxy in this process. proxied handles
// each request, and may forward it with pass.
func (e *env) schedulerThrough(proxied func(w http.ResponseWriter, r *http.Request, pass http.Handler)) string {
	e.t.Helper()
	return e.proxy(cluster.Scheduler, "scheduler-proxy", proxied)
}

// TestSchedulerKilledBetweenClaimAndBind kills the scheduler after the claim and before the bind. It checks that the
// next scheduler finds the claim: the pod gets the claimed address, and no other entry is left.
func TestSchedulerKilledBetweenClaimAndBind(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: threeNodes, controllerArgs: defaultPool, noScheduler: true})
	gate := e.bindGate()
	victim := e.startScheduler("victim", product.SchedulerOptions{Kubeconfig: gate.kubeconfig})
	e.create(statefulSet("web", 3))

	claimed := map[string]string{}
	for range 3 {
		select {
		case name := <-gate.arrived:
			rows := e.await("wait for the claim of "+name, func(rows []witness.Row) bool {
				for _, r := range rows {
					if r.Pod == name && len(r.Entries) == 1 {
						claimed[name] = r.Entries[0]
						return true
					}
				}
				return false
			})
			for _, r := range rows {
				if r.Pod == name && r.Node != "" {
					t.Errorf("pod %s is bound to node %s, want no bind yet", name, r.Node)
				}
			}
		case <-within(t).Done():
			t.Fatal("the scheduler has not sent the binds of all three pods in time")
		}
	}
	e.must(victim.Kill())

	e.startScheduler("successor", product.SchedulerOptions{})
	for name, r := range e.awaitRunning(nil, names("web", 3)...) {
		if r.Node+"/"+r.Address != claimed[name] || len(r.Entries) != 1 || r.Entries[0] != claimed[name] {
			t.Errorf("pod %s runs with %s/%s and has the entries %v, want only the claim %s", name, r.Node, r.Address, r.Entries, claimed[name])
		}
	}
}

// TestSecondClaimIsReleased checks that a claim that is left on another node is released, and that the pod has the same
// address and node after a restart.
func TestSecondClaimIsReleased(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: threeNodes, controllerArgs: defaultPool})
	e.create(statefulSet("web", 1))
	before := e.awaitRunning(nil, "web-0")
	other := "node-1"
	if before["web-0"].Node == other {
		other = "node-2"
	}
	e.must(e.ownerEntry(other, ".77", "default/web-0", "default/StatefulSet/web"))
	e.await("wait for the second claim to be released", func(rows []witness.Row) bool {
		return len(rows) == 1 && len(rows[0].Entries) == 1
	})
	e.deletePods("web-0")
	e.sameAddresses(before, e.awaitRunning(before, "web-0"))
}

// TestKilledDuringChurn checks that all pods keep their addresses if scheduler and controller are killed in turn while the
// pods are deleted.
func TestKilledDuringChurn(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: threeNodes, controllerArgs: defaultPool})
	e.create(statefulSet("web", 6))
	before := e.awaitRunning(nil, names("web", 6)...)
	now := before
	for round := range 4 {
		e.deletePods(names("web", 6)...)
		victim := e.scheduler
		if round%2 == 1 {
			victim = e.controller
		}
		e.must(victim.Kill())
		e.must(victim.Restart(within(t)))
		now = e.awaitRunning(now, names("web", 6)...)
		e.sameAddresses(before, now)
	}
}
