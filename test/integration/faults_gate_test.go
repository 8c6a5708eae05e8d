// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"time"

	"fixedip.io/fixedip/hack/cluster"
)

// failure is the way in which a write fails. The client cannot tell whether the write was executed.
type failure int

const (
	// refused means that the API server does not get the write, and the connection breaks.
	refused failure = iota
	// errored means that the write is executed, and answered with an error of the storage.
	errored
	// lost means that the write is executed, and the connection breaks before the answer.
	lost
)

var failures = []failure{refused, errored, lost}

func (f failure) String() string {
	return [...]string{"not executed", "executed and answered with an error", "executed without an answer"}[f]
}

// fault makes one write of a program fail: at is the number of the write, counted from 1 in each run. The zero fault makes
// no write fail.
type fault struct {
	program string
	at      int
	failure failure
}

func (f fault) String() string {
	if f.at == 0 {
		return "no write fails"
	}
	return fmt.Sprintf("write %d of %s is %s", f.at, f.program, f.failure)
}

// faultGate is a proxy in front of the API server for both programs, which makes one write of each run fail. The runs share
// the programs and are executed in parallel. A write belongs to the run whose namespace or node the write names. Events, and
// the Leases of leader election, are not counted.
//
// Deletions of NodeSubnets are not counted either, and never fail, because they name no node. The scenarios do not need these
// deletions, because their orphaned subnets are inherited or are still in the grace period when the test ends. In the model
// (test/sim) any request may fail, including these deletions.
type faultGate struct {
	// kubeconfigs contains the kubeconfigs that use the gate. Key: the user of the program.
	kubeconfigs map[string]string
	history     *history
	// closed is locked while no request may pass.
	closed sync.RWMutex

	mu sync.Mutex
	// runs contains the started runs. Key: the name of the run.
	runs map[string]*gatedRun
}

// gatedRun is the state of a run in faultGate.
type gatedRun struct {
	fault fault
	// writes contains descriptions of the writes in order. Key: the program.
	writes map[string][]string
	// failed describes the write that failed; empty if no write has failed yet.
	failed string
	// last is the time of the last write or, before the first write, the time of begin.
	last time.Time
}

func (e *env) faultGate() *faultGate {
	e.t.Helper()
	g := &faultGate{kubeconfigs: map[string]string{}, history: &history{}, runs: map[string]*gatedRun{}}
	for _, program := range []string{cluster.Scheduler, cluster.Controller} {
		g.kubeconfigs[program] = e.proxy(program, "faults-"+program, func(w http.ResponseWriter, r *http.Request, onward http.Handler) {
			g.awaitOpen()
			if r.Method == http.MethodGet {
				g.history.recording(program, onward).ServeHTTP(w, r)
				return
			}
			body, err := io.ReadAll(r.Body)
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
			failure, fails := g.fails(program, r, body)
			if !fails {
				g.history.recording(program, onward).ServeHTTP(w, r)
				return
			}
			g.history.unanswered(program, r, body)
			if failure != refused {
				onward.ServeHTTP(httptest.NewRecorder(), r)
			}
			if failure != errored {
				panic(http.ErrAbortHandler)
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusInternalServerError)
			// This is the answer of the API server if etcd is slow.
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"etcdserver: request timed out","code":500}`)
		})
	}
	return g
}

// awaitOpen returns when requests may pass.
func (g *faultGate) awaitOpen() {
	g.closed.RLock()
	defer g.closed.RUnlock()
}

// shut runs f and holds all requests that arrive meanwhile.
func (g *faultGate) shut(f func()) {
	g.closed.Lock()
	defer g.closed.Unlock()
	f()
}

// begin starts to count the writes of a run. The write that f names fails.
func (g *faultGate) begin(run string, f fault) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.runs[run] = &gatedRun{fault: f, writes: map[string][]string{}, last: time.Now()}
}

// of returns a copy of the state of a run, which later writes do not change.
func (g *faultGate) of(run string) gatedRun {
	g.mu.Lock()
	defer g.mu.Unlock()
	state := *g.runs[run]
	state.writes = maps.Clone(state.writes)
	return state
}

// runIn matches the name of a run in the path or the body of a request.
var runIn = regexp.MustCompile(`\brun\d+\b`)

// subnetIn matches the name of a NodeSubnet in the path of a request. The name is replaced in descriptions of writes, because
// each run has different NodeSubnets.
var subnetIn = regexp.MustCompile(`/nodesubnets/[0-9a-f-]+`)

func (g *faultGate) fails(program string, r *http.Request, body []byte) (failure, bool) {
	name := runIn.FindString(r.URL.Path)
	switch {
	case strings.Contains(r.URL.Path, "/events"):
		return 0, false
	case strings.Contains(r.URL.Path, "/nodesubnets"):
		name = string(runIn.Find(body))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	run := g.runs[name]
	if run == nil {
		return 0, false
	}
	write := r.Method + " " + subnetIn.ReplaceAllString(strings.ReplaceAll(r.URL.Path, name, "run"), "/nodesubnets/subnet")
	run.writes[program] = append(run.writes[program], write)
	run.last = time.Now()
	if run.fault.program != program || run.fault.at != len(run.writes[program]) {
		return 0, false
	}
	run.failed = write
	return run.fault.failure, true
}
