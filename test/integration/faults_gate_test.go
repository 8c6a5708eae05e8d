// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"time"

	"fixedip.io/fixedip/hack/cluster"
)

// failure is what happens to a write. Its author cannot tell in any case whether it was executed.
type failure int

const (
	// refused: the API server does not get it, and the connection breaks.
	refused failure = iota
	// errored: it is executed, and answered with an error of the storage.
	errored
	// lost: it is executed, and the connection breaks before the answer.
	lost
)

var failures = []failure{refused, errored, lost}

func (f failure) String() string {
	return [...]string{"refused", "carried out and answered with an error", "carried out and the answer lost"}[f]
}

// fault defines which write of one program fails, counted from 1 within a run, and how. The zero fault fails none.
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

// faultGate is a proxy in front of the API server for both programs. It fails one write of each run. Runs share the
// programs and run in parallel: a write belongs to the run whose namespace or node it names. Events and Leases of
// leader election do not count.
type faultGate struct {
	// kubeconfigs use the gate. Key: the user of the program.
	kubeconfigs map[string]string
	history     *history
	// closed is locked while no request may pass.
	closed sync.RWMutex

	mu sync.Mutex
	// runs contains the started runs. Key: the name of the run.
	runs map[string]*gatedRun
}

// gatedRun is the state of a run in the gate.
type gatedRun struct {
	fault fault
	// writes contains descriptions of the writes in order. Key: the program.
	writes map[string][]string
	// failed describes the failed write; empty if it has not come.
	failed string
	// last is when the last write came.
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
			// The answer of the API server if etcd is slow.
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

// shut blocks all requests while f runs.
func (g *faultGate) shut(f func()) {
	g.closed.Lock()
	defer g.closed.Unlock()
	f()
}

// begin counts the writes of a run and fails one of them.
func (g *faultGate) begin(run string, f fault) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.runs[run] = &gatedRun{fault: f, writes: map[string][]string{}, last: time.Now()}
}

// of returns the state of a run.
func (g *faultGate) of(run string) gatedRun {
	g.mu.Lock()
	defer g.mu.Unlock()
	return *g.runs[run]
}

// runIn finds the run that a path or a text names.
var runIn = regexp.MustCompile(`\brun\d+\b`)

// subnetIn finds the name of a NodeSubnet in a path: each run has its own.
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
