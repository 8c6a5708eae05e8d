// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/hack/realcluster"
	"fixedip.io/fixedip/hack/witness"
	"fixedip.io/fixedip/ipam/scheme"
)

// Names of the nodes. The first two are the calm nodes: scenarios may restart the agents of these nodes, but neither
// the kubelets nor containerd, and the control pods there must answer throughout. Scenarios about nodes use the third
// node, and the fourth node replaces it.
const (
	calmNode, otherNode, victimNode, spareNode = "node-1", "node-2", "node-3", "node-4"
)

var calmNodes = []string{calmNode, otherNode}

const (
	// setUpTimeout is the time limit for everything before the first scenario.
	setUpTimeout = 10 * time.Minute
)

// trial is a run of the scenarios on one cluster.
type trial struct {
	options options
	at      target
	dir     string

	cluster *realcluster.Cluster
	api     client.Client
	witness *witness.Witness
	wire    *wire
	watch   *watch
	// mu guards results, to which all lanes append, and keeps the lines of the report apart.
	mu      sync.Mutex
	results results
	// running is true when the set-up is complete. From then on, the progress of the cluster is not printed.
	running atomic.Bool
}

// runTarget starts a cluster, runs the selected scenarios on it and stops it. It saves the results of a complete run; see
// whole. If it returns an error, scenarios may be missing in the results.
func runTarget(ctx context.Context, o options, at target) (results, error) {
	t := &trial{options: o, at: at, dir: o.folder(at.line), results: results{at: at, updateRate: o.updateRate, began: time.Now()}}
	t.printLines(fmt.Sprintf("Cilium %s, Kubernetes %s, %s routing, agents report every %s\n", at.line, o.kubernetes, o.routing, o.updateRate))
	if err := t.setUp(ctx); err != nil {
		err = fmt.Errorf("set up the cluster with Cilium %s: %w", at, err)
		if t.cluster != nil {
			err = fmt.Errorf("%w\nlogs and objects: %s", err, t.saveArchive("set-up"))
			t.cluster.Stop()
		}
		return t.results, err
	}
	defer t.cluster.Stop()
	t.runAll(ctx)
	t.results.took = time.Since(t.results.began)
	t.printLines(t.results.String())
	if ctx.Err() != nil || !o.whole() {
		return t.results, ctx.Err()
	}
	return t.results, t.results.save(o)
}

func (t *trial) setUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, setUpTimeout, fmt.Errorf("the set-up is not done after %s", setUpTimeout))
	defer cancel()
	began := time.Now()
	o := realcluster.Options{
		Options: t.options.layoutOf(t.at), Dir: t.dir, Bin: t.options.bin, Source: t.options.source,
		Product: t.install,
		Images:  t.images(),
		Log:     t.progress,
	}
	var err error
	if t.cluster, err = realcluster.Start(ctx, o); err != nil {
		return err
	}
	t.results.cilium, t.results.kubernetes = o.CiliumVersion(), o.KubernetesVersion()
	admin, err := t.cluster.RESTConfig(cluster.Admin)
	if err != nil {
		return err
	}
	kinds, err := scheme.New()
	if err != nil {
		return err
	}
	if t.api, err = client.New(admin, client.Options{Scheme: kinds}); err != nil {
		return fmt.Errorf("create a client: %w", err)
	}
	t.wire = newWire(t.cluster)
	if t.witness, err = witness.Start(context.WithoutCancel(ctx), admin); err != nil {
		return err
	}
	if t.watch, err = startWatch(context.WithoutCancel(ctx), t); err != nil {
		return err
	}
	t.progress("the control pods are up after %s", time.Since(began).Round(100*time.Millisecond))
	t.running.Store(true)
	return nil
}

// notInNames matches the parts of a scenario's name that a hyphen replaces in the name of its namespace.
var notInNames = regexp.MustCompile("[^a-z0-9]+")

// newViolations returns the violations that were not reported before, and marks them as reported.
func (t *trial) newViolations() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var list []string
	for _, v := range append(t.witness.Violations(), t.watch.violations()...) {
		if !t.results.reported[v] {
			list = append(list, v)
			t.results.markReported(v)
		}
	}
	return list
}

// record prints an outcome and stores it. If the outcome is a failure, it also saves an archive with this name.
func (t *trial) record(o outcome, archive string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if o.err != nil {
		o.archive = t.saveArchive(archive)
	}
	t.results.outcomes = append(t.results.outcomes, o)
	t.printLines(o.String())
}

// leaveOut notes that there was no time left for a scenario.
func (t *trial) leaveOut(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.results.leftOut = append(t.results.leftOut, name)
}

// progress prints a log line of the cluster. It prints nothing after the scenarios have started.
func (t *trial) progress(format string, args ...any) {
	if t.running.Load() {
		return
	}
	line := strings.ReplaceAll(fmt.Sprintf(format, args...), t.options.source+string(filepath.Separator), "")
	t.printLines(fmt.Sprintf("%6.1fs  %s\n", time.Since(t.results.began).Seconds(), line))
}

// printLines prints lines of the report. If targets run in parallel, each line names its target.
func (t *trial) printLines(text string) {
	if t.options.parallel > 1 {
		prefix := t.at.String() + "  "
		text = prefix + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n"+prefix) + "\n"
	}
	_, _ = os.Stdout.WriteString(text) // the reader may have exited
}
