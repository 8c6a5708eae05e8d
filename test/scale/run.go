// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/hack/product"
	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/scheme"
)

const (
	// waitTimeout is the time limit of each wait.
	waitTimeout = 10 * time.Minute
	// churnWriters is the number of pods that deletePods deletes at the same time.
	churnWriters = 8
)

// defaultLease contains the default times of leader election.
var defaultLease = product.Lease{Duration: 15 * time.Second, Renew: 10 * time.Second, Retry: 2 * time.Second}

func (s *scale) run(ctx context.Context, w *world) error {
	if err := s.start(ctx, w); err != nil {
		return err
	}
	defer s.Stop()
	if err := s.measureController(ctx, w); err != nil || !s.scheduler {
		return err
	}
	return s.measureScheduler(ctx)
}

// start starts the API server with the objects of the world. It writes them into etcd first, unless the work folder already
// has them.
func (s *scale) start(ctx context.Context, w *world) error {
	s.logf("%d nodes, %d pods, %d FixedIPs", w.nodes, w.pods, w.fixed)
	if !s.seeded {
		if err := os.RemoveAll(s.dir); err != nil {
			return fmt.Errorf("empty the work folder: %w", err)
		}
		store := filepath.Join(s.dir, "control-plane", "etcd")
		if err := os.MkdirAll(store, 0o700); err != nil {
			return fmt.Errorf("create the work folder: %w", err)
		}
		seeder, err := startSeeder(store, s.logf)
		if err != nil {
			return err
		}
		err = seeder.seed(ctx, w)
		seeder.stop()
		if err != nil {
			return err
		}
		// etcd has been stopped. Return its memory to the operating system.
		debug.FreeOSMemory()
	}
	// Reduce the garbage of the API server, which needs most of the memory. Our own programs start later, with the default.
	if os.Getenv("GOGC") == "" {
		if err := os.Setenv("GOGC", "50"); err != nil {
			return err
		}
		defer os.Unsetenv("GOGC")
	}
	var err error
	s.Cluster, err = cluster.Start(ctx, cluster.Options{
		Dir:      s.dir,
		Binaries: cluster.Binaries{ControlPlane: filepath.Join(s.bin, "fixedip-controlplane")},
		Manifests: []string{
			filepath.Join(s.manifests, "crd"), filepath.Join(s.manifests, "namespace.yaml"),
			filepath.Join(s.manifests, "scheduler-rbac.yaml"), filepath.Join(s.manifests, "controller-rbac.yaml"),
		},
		ControlPlaneArgs: []string{"--no-controllers", "--ready-timeout=" + waitTimeout.String()},
		StartTimeout:     waitTimeout,
		Log:              s.logf,
	})
	return err
}

// row is one line of the report: the figures when a step has ended. when names the step, took is its duration, and writes
// the number of writes of pools in it.
type row struct {
	when string
	figures
	took   time.Duration
	writes int
}

func (s *scale) measureController(ctx context.Context, w *world) error {
	metrics, err := freePort()
	if err != nil {
		return err
	}
	health, err := freePort()
	if err != nil {
		return err
	}
	profiles, err := freePort()
	if err != nil {
		return err
	}
	args := []string{
		"--cluster-pool-ipv4-cidr=10.0.0.0/8", "--cluster-pool-ipv4-mask-size=24",
		"--metrics-bind-address=127.0.0.1:" + strconv.Itoa(metrics), "--health-probe-bind-address=127.0.0.1:" + strconv.Itoa(health),
	}
	if s.profiles != "" {
		args = append(args, "--pprof-bind-address=127.0.0.1:"+strconv.Itoa(profiles))
	}
	p := &program{began: time.Now(), metrics: fmt.Sprintf("http://127.0.0.1:%d/metrics", metrics), health: fmt.Sprintf("http://127.0.0.1:%d/readyz", health)}
	p.Process, err = product.StartController(s.Cluster, "controller", filepath.Join(s.bin, "fixedip-controller"), product.ControllerOptions{Lease: defaultLease, Args: args})
	if err != nil {
		return err
	}
	var rows []row
	observe := func(when string, took time.Duration, writes int) error {
		f, err := p.observe(ctx)
		if err != nil {
			return err
		}
		s.logf("controller %s: %d MiB resident", when, f.resident/mebibyte)
		rows = append(rows, row{when, f, took, writes})
		if s.profiles == "" {
			return nil
		}
		return profile(ctx, fmt.Sprintf("http://127.0.0.1:%d/debug/pprof/heap?gc=1", profiles), filepath.Join(s.profiles, when+".heap"))
	}
	ctx, cancel := context.WithTimeoutCause(ctx, 3*waitTimeout, fmt.Errorf("not done after %s", 3*waitTimeout))
	defer cancel()
	took, err := p.awaitReady(ctx)
	if err != nil {
		return err
	}
	if err := observe("ready", took, 0); err != nil {
		return err
	}
	writes, err := p.awaitQuiet(ctx)
	if err != nil {
		return err
	}
	if err := observe("settled", time.Since(p.began), writes); err != nil {
		return err
	}
	if s.churn > 0 {
		began := time.Now()
		if err := s.deletePods(ctx, w); err != nil {
			return err
		}
		after, err := p.awaitQuiet(ctx)
		if err != nil {
			return err
		}
		if err := observe("churned", time.Since(began), after-writes); err != nil {
			return err
		}
	}
	fmt.Printf("\n%-12s %10s %10s %10s %10s %10s %11s\n", "controller", "seconds", "RSS", "peak RSS", "PSS", "Go heap", "pool writes")
	peak := int64(0)
	for _, r := range rows {
		fmt.Printf("%-12s %10.1f %6d MiB %6d MiB %6d MiB %6d MiB %11d\n", r.when, r.took.Seconds(), r.resident/mebibyte, r.peak/mebibyte, r.proportional/mebibyte, r.heap/mebibyte, r.writes)
		peak = max(peak, r.peak)
	}
	fmt.Println()
	if s.limit > 0 && peak > s.limit*mebibyte {
		return fmt.Errorf("the controller used up to %d MiB of resident memory, want at most %d MiB", peak/mebibyte, s.limit)
	}
	return nil
}

func profile(ctx context.Context, url, path string) error {
	data, err := get(ctx, url)
	if err != nil {
		return fmt.Errorf("read the profile: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(data), 0o600)
}

// deletePods deletes the first s.churn pods with their CiliumEndpoints and FixedIPs, as if their workloads were scaled down
// and the FixedIPs deleted by hand. It waits until the FixedIPs are gone.
func (s *scale) deletePods(ctx context.Context, w *world) error {
	cfg, err := s.RESTConfig(cluster.Admin)
	if err != nil {
		return err
	}
	kinds, err := scheme.New()
	if err != nil {
		return err
	}
	cfg.QPS, cfg.Burst = 1000, 1000
	api, err := client.New(cfg, client.Options{Scheme: kinds})
	if err != nil {
		return fmt.Errorf("create a client: %w", err)
	}
	writers, deleting := errgroup.WithContext(ctx)
	writers.SetLimit(churnWriters)
	for i := range s.churn {
		p := w.place(i)
		meta := metav1.ObjectMeta{Namespace: p.namespace, Name: p.name}
		writers.Go(func() error {
			for _, o := range []client.Object{&corev1.Pod{ObjectMeta: meta}, &ciliumv2.CiliumEndpoint{ObjectMeta: meta}, &v1alpha1.FixedIP{ObjectMeta: meta}} {
				if err := api.Delete(deleting, o, client.GracePeriodSeconds(0)); client.IgnoreNotFound(err) != nil {
					return fmt.Errorf("delete %T %s/%s: %w", o, p.namespace, p.name, err)
				}
			}
			// In a real cluster the agent of the node does this. An address that is reported as used stays in cooldown, and
			// its entry is rewritten once a minute.
			unused := client.RawPatch(types.JSONPatchType, fmt.Appendf(nil, `[{"op":"remove","path":"/status/ipam/used/%s"}]`, p.addr))
			node := &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: nodeName(p.node)}}
			if err := api.Status().Patch(deleting, node, unused); err != nil {
				return fmt.Errorf("remove %s from status.ipam.used of CiliumNode %s: %w", p.addr, node.Name, err)
			}
			return nil
		})
	}
	if err := writers.Wait(); err != nil {
		return err
	}
	s.logf("deleted %d pods and their FixedIPs", s.churn)
	for i := 0; i < s.churn; {
		p := w.place(i)
		err := api.Get(ctx, client.ObjectKey{Namespace: p.namespace, Name: p.name}, &v1alpha1.FixedIP{})
		if apierrors.IsNotFound(err) {
			i++
			continue
		}
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("read FixedIP %s/%s: %w", p.namespace, p.name, err)
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("wait until FixedIP %s/%s is removed: %w", p.namespace, p.name, context.Cause(ctx))
		}
	}
	s.logf("all %d FixedIPs are removed", s.churn)
	return nil
}

// measureScheduler measures the memory of a scheduler that has no pods to place.
func (s *scale) measureScheduler(ctx context.Context) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	p := &program{began: time.Now()}
	p.Process, err = product.StartScheduler(s.Cluster, "scheduler", filepath.Join(s.bin, "fixedip-scheduler"), product.SchedulerOptions{Lease: defaultLease, SecurePort: port})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, waitTimeout, fmt.Errorf("not done after %s", waitTimeout))
	defer cancel()
	// The endpoints of the scheduler need credentials. It therefore counts as ready when its memory has changed by at most
	// 1 MiB per second for 15 s.
	var last, steady int64
	if _, err := p.await(ctx, "to use a constant amount of memory", time.Second, func() (bool, error) {
		now, err := p.RSS()
		if steady++; now > last+mebibyte || now < last-mebibyte {
			steady = 0
		}
		last = now
		return steady >= 15, err
	}); err != nil {
		return err
	}
	status, err := kilobytes(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		return err
	}
	fmt.Printf("%-12s %10.1f %6d MiB %6d MiB\n", "scheduler", time.Since(p.began).Seconds(), status["VmRSS"]>>10, status["VmHWM"]>>10)
	return nil
}
