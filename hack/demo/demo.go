// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/hack/product"
	"fixedip.io/fixedip/hack/witness"
	"fixedip.io/fixedip/ipam/scheme"
)

const (
	namespace = "default"
	// actTimeout is the time limit of each act, and of the start of the nodes and programs.
	actTimeout = 90 * time.Second
	// updateRate is the report interval of the simulated agents. Cilium's default of 15 s would only make the demo
	// longer.
	updateRate = "1s"
	coolDown   = "5s"
	// preAllocate is the minimum number of free dynamic entries of each pool.
	preAllocate = 8
	// marker is the file by which a work folder shows that a demo created it.
	marker = ".fixedip-demo"
)

var nodes = []string{"node-1", "node-2", "node-3"}

// demo is one run of the demo.
type demo struct {
	bin, dir, manifests string
	keep                bool
	// left is true if the cluster keeps running when run returns.
	left bool
	// recording is nil if no metrics are written.
	recording *recording
	began     time.Time
	acts      int

	cluster               *cluster.Cluster
	witness               *witness.Witness
	api                   client.Client
	scheduler, controller *cluster.Process
	// addresses contains the address of each pod after the first act. Later acts must not change it. Key: the pod name.
	addresses map[string]string
}

func (d *demo) run(ctx context.Context) error {
	if err := d.bringUp(ctx); err != nil {
		return err
	}
	if d.left = d.keep; !d.left {
		defer d.cluster.Stop()
	}
	for _, act := range []func(context.Context) error{
		d.firstPlacement, d.allPodsDeleted, d.rollingRestart, d.bothKilled, d.controllerStopped,
	} {
		if err := d.perform(ctx, act); err != nil {
			return err
		}
	}
	if d.recording != nil {
		if err := d.record(ctx); err != nil {
			return err
		}
	}
	if d.keep {
		d.printAccess()
		return nil
	}
	if err := d.perform(ctx, d.statefulSetDeleted); err != nil {
		return err
	}
	d.printMemory()
	fmt.Printf("\nAll %d acts passed in %s: no address changed and no two pods shared one.\n", d.acts, time.Since(d.began).Round(100*time.Millisecond))
	return nil
}

// failure returns the text for the user after run has returned an error.
func (d *demo) failure(err error) string {
	text := fmt.Sprintf("\ndemo: FAILED: %v\nThe logs are in %s.\n", err, filepath.Join(d.dir, "logs"))
	if errors.Is(err, context.Canceled) {
		text = "demo: interrupted\n"
	}
	if d.left {
		text += "The cluster keeps running. " + d.stopHint() + "\n"
	}
	return text
}

// stopHint returns the sentence that says how to stop a cluster that keeps running.
func (d *demo) stopHint() string { return "To stop it: make demo-stop DEMO_DIR=" + d.dir }

// perform runs an act with a time limit, and checks for violations after it.
func (d *demo) perform(ctx context.Context, act func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, actTimeout, fmt.Errorf("not done after %v", actTimeout))
	defer cancel()
	if err := act(ctx); err != nil {
		return err
	}
	if broken := d.witness.Violations(); len(broken) > 0 {
		return fmt.Errorf("an invariant was violated:\n  %s", strings.Join(broken, "\n  "))
	}
	return nil
}

func (d *demo) printf(format string, args ...any) { fmt.Printf(format+"\n", args...) }

// act counts an act, and prints its title and the property that it proves.
func (d *demo) act(title, proves string) {
	d.acts++
	d.printf("\n── Act %d: %s\n   proves: %s\n", d.acts, title, proves)
}

func (d *demo) bringUp(ctx context.Context) error {
	d.printf("Starting a cluster in %s: etcd, kube-apiserver and kube-controller-manager in one process,\n%d nodes that run Cilium's own allocator, and fixedip's scheduler and controller.\n", d.dir, len(nodes))
	if err := d.clean(); err != nil {
		return err
	}
	var err error
	d.cluster, err = cluster.Start(ctx, cluster.Options{
		Dir:      d.dir,
		Binaries: cluster.Binaries{ControlPlane: d.program("fixedip-controlplane"), SimNode: d.program("fixedip-simnode")},
		Manifests: []string{
			filepath.Join(d.manifests, "crd"),
			filepath.Join(d.manifests, "namespace.yaml"),
			filepath.Join(d.manifests, "scheduler-rbac.yaml"),
			filepath.Join(d.manifests, "controller-rbac.yaml"),
		},
		Detach: d.keep,
		Log:    func(format string, args ...any) { d.printf("  "+format, args...) },
	})
	if err != nil {
		return err
	}
	if err := d.startAll(ctx); err != nil {
		d.cluster.Stop()
		return err
	}
	return nil
}

// stop stops a running cluster of the work folder. It returns an error instead if the folder has content but was not created by
// a demo, because the processes of such a folder may be those of another cluster.
func (d *demo) stop() error {
	entries, err := os.ReadDir(d.dir)
	if err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("read the work folder: %w", err)
	}
	if _, err := os.Stat(filepath.Join(d.dir, marker)); len(entries) > 0 && err != nil {
		return fmt.Errorf("-dir %q: the folder is not empty and was not created by a demo; use another folder", d.dir)
	}
	if err := cluster.StopDetached(d.dir); err != nil {
		return fmt.Errorf("stop the cluster of an earlier demo: %w", err)
	}
	return nil
}

// clean stops a running cluster of the work folder and empties the folder.
func (d *demo) clean() error {
	if err := d.stop(); err != nil {
		return err
	}
	if err := os.RemoveAll(d.dir); err != nil {
		return fmt.Errorf("empty the work folder: %w", err)
	}
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return fmt.Errorf("create the work folder: %w", err)
	}
	return os.WriteFile(filepath.Join(d.dir, marker), nil, 0o600)
}

func (d *demo) program(name string) string { return filepath.Join(d.bin, name) }

func (d *demo) startAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, actTimeout, fmt.Errorf("not done after %v", actTimeout))
	defer cancel()
	for _, n := range nodes {
		if _, err := d.cluster.StartNode(ctx, n, "--update-rate="+updateRate); err != nil {
			return err
		}
	}
	scheduler := product.SchedulerOptions{Lease: product.QuickLease}
	controller := product.ControllerOptions{
		Lease: product.QuickLease,
		Args:  []string{"--cluster-pool-ipv4-cidr=10.240.0.0/16", "--cluster-pool-ipv4-mask-size=24", "--address-cooldown=" + coolDown, fmt.Sprintf("--min-free-ips=%d", preAllocate)},
	}
	if d.recording != nil {
		scheduler.SecurePort = schedulerPort
		controller.Args = append(controller.Args, fmt.Sprintf("--metrics-bind-address=127.0.0.1:%d", controllerPort))
	}
	var err error
	d.controller, err = product.StartController(d.cluster, "controller", d.program("fixedip-controller"), controller)
	if err != nil {
		return err
	}
	d.scheduler, err = product.StartScheduler(d.cluster, "scheduler", d.program("fixedip-scheduler"), scheduler)
	if err != nil {
		return err
	}
	cfg, err := d.cluster.RESTConfig(cluster.Admin)
	if err != nil {
		return err
	}
	if d.recording != nil {
		if err := d.recording.start(context.WithoutCancel(ctx), cfg.BearerToken); err != nil {
			return err
		}
	}
	kinds, err := scheme.New()
	if err != nil {
		return err
	}
	if d.api, err = client.New(cfg, client.Options{Scheme: kinds}); err != nil {
		return fmt.Errorf("create a client: %w", err)
	}
	if d.witness, err = witness.Start(context.WithoutCancel(ctx), cfg); err != nil {
		return err
	}
	for _, n := range nodes {
		if err := d.cluster.WaitNodeReady(ctx, n); err != nil {
			return fmt.Errorf("%w; check in the logs of the controller and of the node whether the pool of the node was filled", err)
		}
	}
	// Each agent allocates two dynamic entries, for the router and health addresses of its node. The controller then
	// adds two new entries.
	if err := d.witness.AwaitPools(ctx, func(p witness.Pool) bool { return p.Used >= 2 && p.Dynamic-p.Used >= preAllocate }); err != nil {
		return fmt.Errorf("wait until pools are filled: %w", err)
	}
	d.printf("  %d nodes ready after %s\n\n%s", len(nodes), time.Since(d.began).Round(100*time.Millisecond), d.witness.Pools())
	return nil
}

func (d *demo) printMemory() {
	d.printf("\nMemory of each process:")
	for _, p := range d.cluster.Processes() {
		if rss, err := p.RSS(); err == nil {
			d.printf("  %-15s %4d MiB", p.Name, rss>>20)
		}
	}
}

func (d *demo) printAccess() {
	d.printMemory()
	d.printf(`
The first %d acts passed, and the cluster keeps running. To use it:

  export KUBECONFIG=%s
  kubectl get pods -o wide
  kubectl get fixedips
  kubectl get ciliumnode node-1 -o jsonpath='{.spec.ipam}'

%s`, d.acts, d.cluster.Kubeconfig(cluster.Admin), d.stopHint())
}
