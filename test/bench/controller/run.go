// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/hack/product"
	"fixedip.io/fixedip/test/bench/apiserver"
	"fixedip.io/fixedip/test/bench/measure"
	"fixedip.io/fixedip/test/bench/world"
)

// waitTimeout limits a step: it may take three times waitTimeout, in addition to the idle time.
const waitTimeout = 10 * time.Minute

// defaultLease contains the default times of leader election.
var defaultLease = product.Lease{Duration: 15 * time.Second, Renew: 10 * time.Second, Retry: 2 * time.Second}

// bench is one run of the benchmark.
type bench struct {
	bin, dir, manifests, profiles, out, commit string
	joining, restarted, released, ending       int
	adopted                                    bool
	idle                                       time.Duration
	began                                      time.Time

	*cluster.Cluster
	world      *world.World
	api        client.WithWatch
	requests   *requests
	controller *program
	// profileURL is the URL at which the controller serves its profiles.
	profileURL string
	steps      []step
}

// step contains the figures of one step. Memory is in bytes. Times are in seconds, except the CPU time of Process.
type step struct {
	Name string `json:"name"`
	// Took is the time from the beginning of the step until the controller had done its work; for the step idle, it is the
	// idle time. The steps ready and settled begin at the start of the controller.
	Took float64 `json:"seconds"`
	measure.Process
	// Heap is the memory of all objects on the Go heap that have not been collected yet.
	Heap int64 `json:"heapBytes"`
	// Writes contains the number of writes of the controller in the step. Key: verb and resource.
	Writes map[string]int `json:"writes"`
	// P50 and P99 are quantiles of the times that the step measures for each object; zero if it measures none.
	P50 float64 `json:"p50Seconds,omitempty"`
	P99 float64 `json:"p99Seconds,omitempty"`
	// WritesPerNode is the number of writes of CiliumNodes, without writes of their status, divided by the number of nodes
	// that the step changes; 0 if that number is not known.
	WritesPerNode float64 `json:"ciliumNodeWritesPerNode,omitempty"`

	// nodes is the number of nodes that the step changes; 0 if it is not known.
	nodes int
}

// countPoolWrites sets WritesPerNode from Writes and nodes.
func (s *step) countPoolWrites() {
	if s.nodes == 0 {
		return
	}
	writes := 0
	for _, verb := range []string{"PATCH", "PUT"} {
		writes += s.Writes[measure.RequestKey(verb, "ciliumnodes", "")]
	}
	s.WritesPerNode = float64(writes) / float64(s.nodes)
}

func (b *bench) logf(format string, args ...any) {
	fmt.Printf("%6.1fs  %s\n", time.Since(b.began).Seconds(), fmt.Sprintf(format, args...))
}

func (b *bench) run(ctx context.Context) error {
	if err := b.start(ctx); err != nil {
		return err
	}
	defer b.Stop()
	if err := b.startController(ctx); err != nil {
		return err
	}
	for _, s := range []struct {
		name string
		skip bool
		do   func(context.Context, *step) error
	}{
		{"ready", false, func(ctx context.Context, s *step) error {
			took, err := b.controller.awaitReady(ctx)
			s.Took = took.Seconds()
			return err
		}},
		{"settled", false, func(ctx context.Context, s *step) error {
			took, err := b.controller.awaitQuiet(ctx, b.requests.total)
			s.Took = took.Seconds()
			return err
		}},
		{"joined", b.joining == 0 || b.adopted, b.join},
		{"restarted", b.restarted == 0 || b.adopted, b.restart},
		{"idle", b.idle == 0, b.rest},
		// This step is the last one, because the controller does not become idle after it: no agents run that would answer
		// its barriers for the released addresses.
		{"released", b.released == 0 || b.adopted, b.release},
	} {
		if s.skip {
			continue
		}
		if err := b.measure(ctx, s.name, s.do); err != nil {
			return fmt.Errorf("step %q: %w", s.name, err)
		}
	}
	b.print(os.Stdout)
	if b.out == "" {
		return nil
	}
	data, err := json.MarshalIndent(map[string]any{"commit": b.commit, "date": b.began.UTC(), "size": b.world.Size, "steps": b.steps}, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the figures: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(b.out), 0o755); err != nil {
		return fmt.Errorf("create the folder of the figures: %w", err)
	}
	return os.WriteFile(b.out, append(data, '\n'), 0o644)
}

// measure runs a step and adds its figures. Figures with profiles are not comparable with figures without profiles.
func (b *bench) measure(ctx context.Context, name string, do func(context.Context, *step) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, b.idle+3*waitTimeout, fmt.Errorf("the step is not done after %s", b.idle+3*waitTimeout))
	defer cancel()
	before, err := b.requests.written(ctx)
	if err != nil {
		return err
	}
	s := step{Name: name}
	profiled := b.profileCPU(ctx, name)
	if err := do(ctx, &s); err != nil {
		return err
	}
	if err := profiled(); err != nil {
		return err
	}
	after, err := b.requests.written(ctx)
	if err != nil {
		return err
	}
	for key := range after {
		after[key] -= before[key]
	}
	maps.DeleteFunc(after, func(_ string, n int) bool { return n == 0 })
	heap, _, err := b.controller.state(ctx)
	if err != nil {
		return err
	}
	if s.Process, err = measure.OfProcess(b.controller.PID()); err != nil {
		return err
	}
	s.Heap, s.Writes = heap, after
	s.countPoolWrites()
	b.steps = append(b.steps, s)
	b.logf("%s after %.1f s: %d MiB resident, writes %v", name, s.Took, s.Resident/measure.Mebibyte, s.Writes)
	if b.profiles == "" {
		return nil
	}
	return measure.Save(ctx, http.DefaultClient, b.profileURL+"heap?gc=1", filepath.Join(b.profiles, name+".heap"))
}

// cpuProfileSeconds is the length of a CPU profile. It is fixed, because the controller sends nothing if the request for a
// profile ends early.
const cpuProfileSeconds = 10

// profileCPU writes CPU profiles of the controller, one after the other, if b.profiles is set: STEP-1.cpu, STEP-2.cpu and
// so on, which go tool pprof merges if it gets all of them. The returned function starts no further profile, and waits for
// the last one, which may continue for cpuProfileSeconds after the step.
func (b *bench) profileCPU(ctx context.Context, step string) func() error {
	if b.profiles == "" {
		return func() error { return nil }
	}
	running, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		var err error
		for i := 1; err == nil && running.Err() == nil; i++ {
			url := fmt.Sprintf("%sprofile?seconds=%d", b.profileURL, cpuProfileSeconds)
			err = measure.SaveServed(ctx, http.DefaultClient, url, filepath.Join(b.profiles, fmt.Sprintf("%s-%d.cpu", step, i)))
		}
		done <- err
	}()
	return func() error {
		stop()
		return <-done
	}
}

// start starts the API server on an etcd with all objects of the world.
func (b *bench) start(ctx context.Context) error {
	b.logf("size of the cluster: %+v", b.world.Size)
	c, cfg, err := apiserver.Start(ctx, apiserver.Options{Bin: b.bin, Dir: b.dir, Manifests: b.manifests, World: b.world, SaveMemory: true, Log: b.logf})
	if err != nil {
		return err
	}
	b.Cluster = c
	web, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return fmt.Errorf("create an HTTP client: %w", err)
	}
	b.requests = &requests{apiServer: cfg.Host, http: web, own: map[string]float64{}}
	cfg.Wrap(b.requests.count)
	b.api, err = apiserver.NewClient(cfg)
	return err
}

func (b *bench) startController(ctx context.Context) error {
	var ports [3]int
	for i := range ports {
		var err error
		if ports[i], err = measure.FreePort(); err != nil {
			return err
		}
	}
	loopback := func(i int) string { return "127.0.0.1:" + strconv.Itoa(ports[i]) }
	args := []string{
		"--cluster-pool-ipv4-cidr=10.0.0.0/8", "--cluster-pool-ipv4-mask-size=24",
		"--metrics-bind-address=" + loopback(0), "--health-probe-bind-address=" + loopback(1),
	}
	if b.profiles != "" {
		args = append(args, "--pprof-bind-address="+loopback(2))
		b.profileURL = "http://" + loopback(2) + "/debug/pprof/"
	}
	b.controller = &program{began: time.Now(), metrics: "http://" + loopback(0) + "/metrics", health: "http://" + loopback(1) + "/readyz"}
	var err error
	b.controller.Process, err = product.StartController(b.Cluster, "controller", filepath.Join(b.bin, "fixedip-controller"), product.ControllerOptions{Lease: defaultLease, Args: args})
	return err
}

// rest waits for the idle time.
func (b *bench) rest(ctx context.Context, s *step) error {
	s.Took = b.idle.Seconds()
	select {
	case <-time.After(b.idle):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// print writes the figures as a table.
func (b *bench) print(w io.Writer) {
	fmt.Fprint(w, "\n| Step | seconds | RSS, MiB | peak RSS, MiB | Go heap, MiB | CPU, s | p50, s | p99, s | "+
		"CiliumNode writes per node | writes |\n|---|---|---|---|---|---|---|---|---|---|\n")
	for _, s := range b.steps {
		var writes []string
		for _, key := range slices.Sorted(maps.Keys(s.Writes)) {
			writes = append(writes, fmt.Sprintf("%d %s", s.Writes[key], key))
		}
		fmt.Fprintf(w, "| %s | %.1f | %d | %d | %d | %.1f | %.3f | %.3f | %.2f | %s |\n", s.Name, s.Took, s.Resident/measure.Mebibyte,
			s.Peak/measure.Mebibyte, s.Heap/measure.Mebibyte, s.CPU.Seconds(), s.P50, s.P99, s.WritesPerNode, strings.Join(writes, ", "))
	}
}
