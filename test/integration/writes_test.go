// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/hack/product"
	"fixedip.io/fixedip/hack/witness"
	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// writeGate is a proxy in front of the API server that counts the writes of the controller, except events and access reviews.
// It can stop the controller at one of the writes, before the API server gets the write or before the controller gets the
// response.
type writeGate struct {
	kubeconfig string
	// stopped receives a description of the write at which the controller was stopped.
	stopped chan string

	mu sync.Mutex
	// at is the number of the write to stop at, counted from the last call of arm; 0: none. count is the number of writes since
	// that call or, before the first call, since the gate was created.
	at, count int
	// after is true if the write to stop at is executed.
	after bool
}

func (e *env) writeGate() *writeGate {
	e.t.Helper()
	g := &writeGate{stopped: make(chan string, 1)}
	g.kubeconfig = e.proxy(cluster.Controller, "write-gate", func(w http.ResponseWriter, r *http.Request, onward http.Handler) {
		stop, after := g.stops(r)
		switch {
		case !stop:
			onward.ServeHTTP(w, r)
			return
		case after:
			onward.ServeHTTP(httptest.NewRecorder(), r)
		}
		g.stopped <- r.Method + " " + r.URL.Path
		<-r.Context().Done()
	})
	return g
}

// arm makes the gate stop the controller at its n-th write from now on.
func (g *writeGate) arm(n int, after bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.at, g.count, g.after = n, 0, after
}

// disarm makes the gate stop at no further write. fired is true if the gate has stopped at a write. The channel stopped
// may receive the description of the write after disarm returns, because the test can see the effect of an executed write
// before the gate sends the description.
func (g *writeGate) disarm() (fired bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	fired = g.at == 0
	g.at = 0
	return fired
}

// writes returns the number of writes since the gate was created or armed.
func (g *writeGate) writes() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.count
}

func (g *writeGate) stops(r *http.Request) (stop, after bool) {
	// A SelfSubjectAccessReview asks a question and stores nothing.
	if r.Method == http.MethodGet || strings.Contains(r.URL.Path, "/events") || strings.HasPrefix(r.URL.Path, "/apis/authorization.k8s.io/") {
		return false, false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.count++
	stop = g.count == g.at
	if stop {
		g.at = 0
	}
	return stop, g.after
}

// TestKilledAtEveryWrite kills the controller at each of its writes and restarts it. It interrupts each write twice: before
// the API server gets the write, and before the controller gets the response. The test checks in each case that a
// StatefulSet is placed, scaled down and deleted as usual.
func TestKilledAtEveryWrite(t *testing.T) {
	t.Parallel()
	e := start(t, options{noScheduler: true, controlPlaneArgs: keepNodesReady})
	gate := e.writeGate()
	controller, err := product.StartController(e.Cluster, "controller", filepath.Join(bin, "race", "fixedip-controller"), product.ControllerOptions{
		Kubeconfig: gate.kubeconfig,
		// Without leader election the controller does not write a Lease, which the gate would count.
		Args: []string{"--cluster-pool-ipv4-cidr=10.77.0.0/16", "--address-cooldown=1s", "--enable-leader-election=false"},
	})
	e.must(err)
	f := e.fakeNodes(1, onFake(0))
	// The controller has written the dynamic entries before killedAt arms the gate.
	e.must(e.witness.AwaitPools(within(t), func(p witness.Pool) bool { return p.Dynamic == 8 }))

	var writes []string
	for n := 1; ; n++ {
		stopped := 0
		for _, after := range []bool{false, true} {
			if write, ok := e.killedAt(gate, controller, f, n, after); ok {
				stopped++
				when := "before"
				if after {
					when = "after"
				}
				writes = append(writes, fmt.Sprintf("%d, %s: %s", n, when, write))
			}
		}
		if stopped == 0 {
			break
		}
	}
	t.Logf("killed at %d writes:\n%s", len(writes), strings.Join(writes, "\n"))
	// Two FixedIPs are created, used and released, each in several writes, and the pool is written too.
	if len(writes) < 20 {
		t.Errorf("the controller was killed %d times before or after a write, want at least 20 times", len(writes))
	}
}

// killedAt creates, scales down and deletes a StatefulSet, and kills the controller at its n-th write. It returns the
// description of that write. ok is false if the controller made fewer writes.
func (e *env) killedAt(gate *writeGate, controller *cluster.Process, f *fakes, n int, after bool) (write string, ok bool) {
	e.t.Helper()
	name := fmt.Sprintf("n%d-%t", n, after)
	done := make(chan struct{})
	var killing sync.WaitGroup
	killing.Go(func() {
		select {
		case write = <-gate.stopped:
			ok = true
			if err := controller.Kill(); err != nil {
				e.t.Error(err)
			}
			if err := controller.Restart(within(e.t)); err != nil {
				e.t.Error(err)
			}
		case <-done:
		}
	})
	gate.arm(n, after)
	annotated := func(s *appsv1.StatefulSet) { s.Annotations = map[string]string{"fixedip.io/when-scaled": "Delete"} }
	sts := statefulSet(name, 2, placedByFakes, annotated)
	e.create(sts)
	placed := e.awaitRunning(nil, names(name, 2)...)
	for pod, r := range placed {
		fip := e.witness.Record(namespace, pod)
		if !slices.Equal(fip.Spec.IPs, []string{r.Address}) || fip.Spec.NodeName != r.Node || fip.Spec.Owner.UID != sts.UID || !slices.Equal(r.Entries, []string{r.Node + "/" + r.Address}) {
			e.t.Errorf("%s: pod %+v does not match its FixedIP %+v", name, r, fip.Spec)
		}
	}
	e.must(e.api.Patch(within(e.t), statefulSet(name, 0), client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"replicas":1}}`))))
	e.await(name+": wait for the second replica, its FixedIP and its entry to be deleted", func(rows []witness.Row) bool {
		return len(rows) == 1 && rows[0].Pod == name+"-0" && rows[0].State == v1alpha1.ReasonInUse && rows[0].Address == placed[name+"-0"].Address
	})
	e.delete(statefulSet(name, 0))
	e.await(name+": wait for all pods, FixedIPs and entries to be deleted", func(rows []witness.Row) bool { return len(rows) == 0 })
	e.must(e.witness.AwaitPools(within(e.t), func(p witness.Pool) bool { return p.Fixed == 0 && p.Other == 0 && p.Dynamic == 8 }))
	if !gate.disarm() {
		close(done)
	}
	killing.Wait()
	return write, ok
}
