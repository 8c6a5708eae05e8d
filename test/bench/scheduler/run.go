// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/hack/product"
	"fixedip.io/fixedip/test/bench/apiserver"
	"fixedip.io/fixedip/test/bench/measure"
	"fixedip.io/fixedip/test/bench/world"
)

// armLabel is the label of the pods of the current arm. Its value is the name of the arm.
const armLabel = "bench.fixedip.io/arm"

// manyPods is the number of running pods above which the API server has to save memory, on a machine with 24 GiB.
const manyPods = 50_000

// eventsInterval is the time without new events after which the events of an arm count as complete, and eventsTimeout the
// longest time to wait for that.
const (
	eventsInterval = 500 * time.Millisecond
	eventsTimeout  = 10 * time.Second
)

// bench is one run of the benchmark.
type bench struct {
	bin, dir, manifests, out, commit string
	// profiles is the folder for profiles of the schedulers; if empty, no profiles are written.
	profiles          string
	size              world.Size
	pods, rounds, qps int
	reports           bool
	only              []string
	// limits are the limits of the figures; if nil, the figures are not compared. The method run removes the limits for
	// other sizes and loads.
	limits []limit
	began  time.Time

	*cluster.Cluster
	world *world.World
	api   client.WithWatch
	// apiServer is the address of the API server. http is the client for the metrics of the API server and the schedulers.
	apiServer string
	http      *http.Client
	reporter  *reporter
}

func (b *bench) logf(format string, args ...any) {
	fmt.Printf("%6.1fs  %s\n", time.Since(b.began).Seconds(), fmt.Sprintf(format, args...))
}

func (b *bench) run(ctx context.Context) error {
	report := b.newReport()
	if b.limits != nil {
		if b.limits = report.applicable(b.limits); len(b.limits) == 0 {
			return fmt.Errorf("-limits: the file has no limits for %s, the size and load of this run", report.name())
		}
		if len(b.only) == 0 {
			b.only = armsOf(b.limits)
		}
	}
	if err := b.start(ctx); err != nil {
		return err
	}
	defer b.Stop()
	if b.reports {
		b.reporter = &reporter{world: b.world, api: b.api, http: b.http, apiServer: b.apiServer}
		var reporting sync.WaitGroup
		defer reporting.Wait()
		reports, stop := context.WithCancel(ctx)
		defer stop()
		reporting.Go(func() { b.reporter.run(reports) })
	}
	if err := b.runArms(ctx, report, b.only); err != nil {
		return err
	}
	if b.out != "" {
		if err := report.write(b.out); err != nil {
			return err
		}
	}
	if b.limits == nil {
		return nil
	}
	missed, err := report.check(b.limits)
	if len(missed) == 0 {
		return err
	}
	// Other load of the machine may have affected one arm of the figures for several rounds.
	b.rounds *= 2
	b.logf("%v; the arms of these figures run again, %d rounds", err, b.rounds)
	repeated := b.newReport()
	if err := b.runArms(ctx, repeated, armsOf(missed)); err != nil {
		return err
	}
	_, err = repeated.check(missed)
	return err
}

// runArms runs the arms in each round, adds their results to the report, and prints it. All arms run if only is empty.
func (b *bench) runArms(ctx context.Context, report *report, only []string) error {
	for round := range b.rounds {
		for _, a := range allArms {
			if len(only) > 0 && !slices.Contains(only, a.name) {
				continue
			}
			if a.count == 0 {
				a.count = b.pods
			}
			result, err := b.measure(ctx, a, round)
			if err != nil {
				return fmt.Errorf("round %d of arm %s (%s): %w", round+1, a.name, a.about, err)
			}
			b.logf("round %d, arm %s: %6.0f per second", round+1, a.name, result.PerSecond)
			report.Results = append(report.Results, result)
		}
	}
	if err := b.reporter.failed(); err != nil {
		return fmt.Errorf("simulate the reports of agents: %w", err)
	}
	report.print(os.Stdout)
	return nil
}

// start starts the API server on an etcd with all objects of the world.
func (b *bench) start(ctx context.Context) error {
	var err error
	if b.world, err = world.New(b.size); err != nil {
		return err
	}
	var cfg *rest.Config
	b.Cluster, cfg, err = apiserver.Start(ctx, apiserver.Options{
		Bin: b.bin, Dir: b.dir, Manifests: b.manifests, World: b.world, Log: b.logf,
		SaveMemory: b.size.Fixed+b.size.Ordinary > manyPods,
	})
	if err != nil {
		return err
	}
	if b.api, err = apiserver.NewClient(cfg); err != nil {
		return err
	}
	b.apiServer = cfg.Host
	// The schedulers present certificates that they sign themselves.
	insecure := rest.CopyConfig(cfg)
	insecure.TLSClientConfig = rest.TLSClientConfig{Insecure: true}
	b.http, err = rest.HTTPClientFor(insecure)
	return err
}

// measure runs an arm once.
func (b *bench) measure(ctx context.Context, a arm, round int) (result, error) {
	r := result{Arm: a.name, Round: round, Pods: a.count}
	if a.program == "" {
		// Not in the return statement: Go does not specify whether r is read before patchPools changes it.
		err := b.patchPools(ctx, &r)
		return r, errors.Join(err, b.restorePools(ctx))
	}
	pods := make([]*corev1.Pod, a.count)
	for i := range pods {
		pods[i] = a.pod(b.world, i)
		metav1.SetMetaDataLabel(&pods[i].ObjectMeta, armLabel, a.name)
		world.LowPriority(pods[i])
	}
	if !a.withoutFixedIP {
		for i := range b.size.Searching {
			pods = append(pods, b.world.SearchingPod(i))
		}
	}
	if err := b.createPods(ctx, pods); err != nil {
		return r, err
	}
	if err := b.schedule(ctx, a, &r); err != nil {
		return r, err
	}
	if err := b.deletePods(ctx, pods); err != nil || !a.writesPools {
		return r, err
	}
	return r, b.restorePools(ctx)
}

// schedule starts the scheduler of an arm, watches its binds, and stops it.
func (b *bench) schedule(ctx context.Context, a arm, r *result) error {
	port, err := measure.FreePort()
	if err != nil {
		return err
	}
	watcher, err := b.watchPods(ctx, a)
	if err != nil {
		return err
	}
	before, err := b.apiMetrics(ctx)
	if err != nil {
		watcher.Stop()
		return err
	}
	workloads := ""
	if b.size.Searching > 0 {
		workloads = "[{apiGroup: apps, kind: Deployment, identity: Slot}]"
	}
	reported := b.reporter.count()
	started := time.Now()
	p, err := product.StartScheduler(b.Cluster, "scheduler", filepath.Join(b.bin, a.program), product.SchedulerOptions{
		NoElection: true, SecurePort: port, QPS: b.qps, NoFixedIP: a.withoutFixedIP, Plugins: a.plugins, Workloads: workloads,
	})
	if err != nil {
		watcher.Stop()
		return err
	}
	defer func() { _ = p.Kill() }()
	served := fmt.Sprintf("https://127.0.0.1:%d", port)
	profiled := b.profileCPU(ctx, served, a, r.Round)
	binds, err := b.watchBinds(ctx, a, watcher, p)
	if err != nil {
		return err
	}
	figures, err := measure.OfProcess(p.PID())
	if err != nil {
		return err
	}
	after, err := b.metricsAfterEvents(ctx)
	if err != nil {
		return err
	}
	// The profile is not read: gc=1 makes the scheduler collect garbage, and the metrics then contain the heap goal that follows
	// from the live heap.
	body, err := measure.Get(ctx, b.http, served+"/debug/pprof/heap?gc=1")
	if err != nil {
		return fmt.Errorf("collect the scheduler's garbage: %w", err)
	}
	_ = body.Close()
	metrics, err := measure.Read(ctx, b.http, served+"/metrics")
	if err != nil {
		return err
	}
	if err := profiled(); err != nil {
		return err
	}
	r.PerSecond = float64(a.count-1) / binds.last.Sub(binds.first).Seconds()
	r.FirstBind = binds.first.Sub(started).Seconds()
	r.CPU = (figures.CPU - binds.cpuAtFirst).Seconds() * 1000 / float64(a.count)
	r.StartCPU = binds.cpuAtFirst.Seconds()
	r.Resident, r.Peak = figures.Resident, figures.Peak
	if r.HeapGoal = int64(metrics.Sum("go_memstats_next_gc_bytes", nil)); r.HeapGoal == 0 {
		return errors.New("the scheduler serves no metric go_memstats_next_gc_bytes")
	}
	r.Attempt = metrics.Latency("scheduler_scheduling_attempt_duration_seconds", map[string]string{"result": "scheduled"})
	r.Claim = metrics.Latency("fixedip_claim_duration_seconds", nil)
	r.Refused = int(metrics.Sum("scheduler_schedule_attempts_total", map[string]string{"result": "unschedulable"}))
	r.Requests = requestsPerPod(before, after, a.count, b.reporter.count()-reported)
	// Events before the first bind do not count: they deliver the existing CiliumNodes.
	watches := 0.0
	if !a.withoutFixedIP {
		watches++
	}
	if b.reporter != nil {
		watches++
	}
	r.WatchBytes = (after.Sum(watchBytes, ofCiliumNodes) - binds.atFirst.Sum(watchBytes, ofCiliumNodes)) / float64(a.count) / max(watches, 1)
	return nil
}

// apiMetrics reads the metrics of the API server.
func (b *bench) apiMetrics(ctx context.Context) (measure.Metrics, error) {
	return measure.Read(ctx, b.http, b.apiServer+"/metrics")
}

// metricsAfterEvents reads the metrics of the API server when it has received the events about the last pods. A scheduler
// sends events later than binds, and the faster of two arms would otherwise count fewer events.
func (b *bench) metricsAfterEvents(ctx context.Context) (measure.Metrics, error) {
	former := -1.0
	for began := time.Now(); ; {
		m, err := b.apiMetrics(ctx)
		if err != nil {
			return nil, err
		}
		now := m.Sum("apiserver_request_total", map[string]string{"resource": "events"})
		if now == former || time.Since(began) > eventsTimeout {
			return m, nil
		}
		former = now
		select {
		case <-time.After(eventsInterval):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
