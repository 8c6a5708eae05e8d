// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/hack/product"
	"fixedip.io/fixedip/hack/witness"
)

// soakParts is the number of parts of the churn. After each part all wanted pods run again, so that the resources that the
// programs use are comparable.
const soakParts = 24

// usage contains the resources that a program uses at one moment: the number of goroutines, and in bytes the allocated heap,
// the memory that Go has taken from the system, the part of it that Go has returned to the system, and the resident memory.
type usage struct{ goroutines, heap, taken, returned, resident float64 }

// growth contains the bounds of the growth of resources: the median of the last third of a soak is at most bound times
// that of the first third. The first measurement is left out, because the program opens connections and fills caches in
// the first part. Goroutines and the heap after a collection are exact. The memory that Go has obtained from the system
// includes memory that Go keeps for reuse. Resident memory also includes memory outside of Go. The race detector keeps
// such memory for each former goroutine and each defer (go.dev/doc/articles/race_detector, "Runtime Overhead"). So with
// the race detector resident memory always grows.
var growth = []struct {
	what  string
	of    func(usage) float64
	bound float64
	// plain is true if the bound is asserted only without the race detector.
	plain bool
}{
	{"goroutines", func(h usage) float64 { return h.goroutines }, 1.05, false},
	{"heap after a collection", func(h usage) float64 { return h.heap }, 1.10, false},
	{"memory that Go has obtained from the system", usage.goMemory, 1.25, false},
	{"resident memory", func(h usage) float64 { return h.resident }, 1.25, true},
}

// goMemory returns the memory that Go has obtained from the system and not returned.
func (h usage) goMemory() float64 { return h.taken - h.returned }

var (
	goroutineTotal = regexp.MustCompile(`goroutine profile: total (\d+)`)
	heapAlloc      = regexp.MustCompile(`# HeapAlloc = (\d+)`)
	heapReleased   = regexp.MustCompile(`# HeapReleased = (\d+)`)
	taken          = regexp.MustCompile(`# Sys = (\d+)`)
)

// profiled is a program that serves Go profiles.
type profiled struct {
	process *cluster.Process
	// read reads a path below /debug/pprof/.
	read func(ctx context.Context, path string) (string, error)
}

// measure returns the resources that the program uses now.
func (p profiled) measure(ctx context.Context) (usage, error) {
	var h usage
	for path, figures := range map[string]map[*regexp.Regexp]*float64{
		"goroutine?debug=1": {goroutineTotal: &h.goroutines},
		"heap?debug=1&gc=1": {heapAlloc: &h.heap, heapReleased: &h.returned, taken: &h.taken},
	} {
		body, err := p.read(ctx, path)
		if err != nil {
			return h, fmt.Errorf("read %s of %s: %w", path, p.process.Name, err)
		}
		for in, to := range figures {
			found := in.FindStringSubmatch(body)
			if found == nil {
				return h, fmt.Errorf("%s of %s does not match %v: %.200s", path, p.process.Name, in, body)
			}
			if *to, err = strconv.ParseFloat(found[1], 64); err != nil {
				return h, err
			}
		}
	}
	resident, err := p.process.RSS()
	h.resident = float64(resident)
	return h, err
}

// soakTime returns the duration of the churn: FIXEDIP_SOAK, or two minutes.
func soakTime(t *testing.T) time.Duration {
	if s := os.Getenv("FIXEDIP_SOAK"); s != "" {
		d, err := time.ParseDuration(s)
		if err != nil {
			t.Fatalf("parse FIXEDIP_SOAK: %v", err)
		}
		return d
	}
	return 2 * time.Minute
}

// TestSoak creates, scales, rolls, moves and deletes pods and workloads for the duration FIXEDIP_SOAK, in one cluster with the
// race detector and in one without it. It checks that no invariant is violated, that all wanted pods run again after each
// part, and that the resources that both programs use have not grown beyond the bounds in growth.
func TestSoak(t *testing.T) {
	t.Parallel()
	for name, plain := range map[string]bool{"detector": false, "plain": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			soak(t, plain)
		})
	}
}

func soak(t *testing.T, plain bool) {
	seed := fromEnv(t, "FIXEDIP_SEED", 1)
	controllerPort := freePort(t)
	// Leader election is disabled. On a busy machine a program could lose the short Lease of the tests within an hour
	// and exit, and the test does not restart programs.
	e := start(t, options{
		nodes: threeNodes, noScheduler: true, plain: plain,
		controllerArgs: append(slices.Clone(defaultPool), "--enable-leader-election=false", fmt.Sprintf("--pprof-bind-address=127.0.0.1:%d", controllerPort)),
	})
	secure := e.startServing(product.SchedulerOptions{Movable: true, NoElection: true})
	programs := []profiled{
		{e.scheduler, func(ctx context.Context, path string) (string, error) {
			status, body, err := secure.get(ctx, "/debug/pprof/"+path, secure.token)
			if err == nil && status != http.StatusOK {
				err = fmt.Errorf("status %d: %.200s", status, body)
			}
			return body, err
		}},
		{e.controller, func(ctx context.Context, path string) (string, error) {
			return readProfile(ctx, fmt.Sprintf("http://127.0.0.1:%d/debug/pprof/%s", controllerPort, path))
		}},
	}

	c := &churn{e: e, random: rand.New(rand.NewPCG(seed, 1)), done: map[string]int{}}
	first := c.awaitWanted()
	// measured contains the resources after each part. Key: the program.
	measured := map[string][]usage{}
	span, began := soakTime(t), time.Now()
	for part := range soakParts {
		end := time.NewTimer(time.Until(began.Add(span * time.Duration(part+1) / soakParts)))
		c.during(func() { <-end.C })
		now := c.awaitWanted()
		e.sameAddresses(only(first, names("keeps", 4)...), only(now, names("keeps", 4)...))
		e.must(e.witness.AwaitPools(within(t), func(p witness.Pool) bool { return p.Other == 0 }))
		for _, p := range programs {
			h, err := p.measure(within(t))
			e.must(err)
			measured[p.process.Name] = append(measured[p.process.Name], h)
			t.Logf("%s: %s uses %.0f goroutines, %.1f MiB of heap, %.0f MiB from the system, %.0f MiB resident", time.Since(began).Round(time.Second), p.process.Name, h.goroutines, h.heap/(1<<20), h.goMemory()/(1<<20), h.resident/(1<<20))
		}
		if t.Failed() || len(e.witness.Violations()) > 0 {
			break
		}
	}
	t.Logf("the churn of %s: %v; %d pods ran", time.Since(began).Round(time.Second), c.done, e.witness.Incarnations())
	for _, p := range programs {
		flat(t, p.process.Name, plain, measured[p.process.Name])
	}
}

// flat checks that the resources that a program uses have not grown beyond the bounds in growth.
func flat(t *testing.T, program string, plain bool, measured []usage) {
	t.Helper()
	third := (len(measured) - 1) / 3
	if third == 0 {
		t.Fatalf("%s was measured %d times, want at least 4", program, len(measured))
	}
	for _, g := range growth {
		ratio := median(measured[len(measured)-third:], g.of) / median(measured[1:1+third], g.of)
		t.Logf("%s: %s at the end is %.3f of that at the beginning", program, g.what, ratio)
		if ratio > g.bound && (plain || !g.plain) {
			t.Errorf("%s: %s at the end is %.3f of that at the beginning, want at most %.2f", program, g.what, ratio, g.bound)
		}
	}
}

func median(measured []usage, of func(usage) float64) float64 {
	var figures []float64
	for _, h := range measured {
		figures = append(figures, of(h))
	}
	slices.Sort(figures)
	return figures[len(figures)/2]
}

// only returns the rows of some pods.
func only(rows map[string]witness.Row, pods ...string) map[string]witness.Row {
	some := map[string]witness.Row{}
	for _, pod := range pods {
		some[pod] = rows[pod]
	}
	return some
}

func readProfile(ctx context.Context, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %.200s", response.StatusCode, body)
	}
	return string(body), err
}
