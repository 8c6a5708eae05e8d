// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Command e2e runs fixedip on clusters of real nodes: unmodified kubelets, containerd and Cilium, our programs installed
// as users install them, and pods that answer HTTP requests through eBPF. It runs the scenarios of this folder and reports
// for each scenario whether its expectation held.
//
//	e2e -cilium 1.19                          one version
//	e2e -cilium 1.18,1.19,1.20 -table FILE    one after the other, and a table of the results
//	e2e -cilium 1.18,1.19,1.20 -beside 3      all at the same time
//	e2e -cilium 1.18,1.19 -last -table FILE   only the table, from the last complete runs
//	e2e -cilium 1.19/native,1.20/1.35         one without tunnels between the nodes, one with Kubernetes 1.35
//	e2e -run 'drained|rebooted'               some scenarios only
//	e2e -kills none                           each scenario once, without kills
//	e2e -limit 30m                            as many scenarios as can begin within half an hour
//	e2e -routing native                       without tunnels between the nodes
//
// Exit status 1: the command or a scenario failed, or no scenario ran on a version; for a failed scenario, an archive of logs
// and objects is in the work folder. Exit status 2: a prerequisite is missing on this machine, or the command line cannot be
// parsed; the message says which.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"fixedip.io/fixedip/hack/realcluster/layout"
	"fixedip.io/fixedip/hack/realcluster/preflight"
)

// options are the flags of the command.
type options struct {
	bin, dir, source, tag string
	targets               []target
	updateRate            time.Duration
	// pairs is the number of replacements after which the scenario "time to come back" judges the ratio. With 0 the
	// scenario is left out.
	pairs int
	// limit is how long after the start of the command scenarios may begin; 0 means without a limit.
	limit time.Duration
	began time.Time
	profile
	only *regexp.Regexp
	// table and compatibility are the paths of files for the results; empty if they are not written.
	table, compatibility string
	kills                killMode
	// parallel is the number of targets that run at the same time.
	parallel int
	// machine is locked by a scenario that measures times, and read-locked by all others, so that the other targets wait
	// during a measurement.
	machine *sync.RWMutex
}

func main() {
	err := run()
	if err == nil {
		return
	}
	fmt.Fprintf(os.Stderr, "e2e: %v\n", err)
	if missing := (*preflight.Missing)(nil); errors.As(err, &missing) {
		os.Exit(preflight.ExitCode)
	}
	os.Exit(1)
}

func run() error {
	o := options{machine: &sync.RWMutex{}, began: time.Now()}
	flag.StringVar(&o.bin, "bin", "bin", "folder of the programs and images")
	flag.StringVar(&o.dir, "dir", ".e2e", "work folder, with a subfolder for each version")
	flag.StringVar(&o.source, "source", ".", "folder of this repository")
	flag.StringVar(&o.tag, "tag", "latest", "tag of the images")
	cilium := flag.String("cilium", "1.19", "minor versions of Cilium, such as 1.18,1.19; 1.19/native and 1.20/1.35 override -routing and -kubernetes for one of them")
	flag.DurationVar(&o.updateRate, "update-rate", 15*time.Second, "minimum interval between two reports of an agent")
	flag.IntVar(&o.pairs, "pairs", 200, "number of replacements of pods with a fixed address, and of pods without; the scenario \"time to come back\" compares their median times; 0 leaves it out")
	flag.DurationVar(&o.limit, "limit", 0, "how long after the start of the command scenarios may begin; those that are left out are printed (0: no limit)")
	flag.StringVar((*string)(&o.routing), "routing", string(layout.Tunnel), "how packets reach pods of other nodes: tunnel, or native (routes to the subnets of nodes; scenarios whose addresses leave their subnet are left out)")
	flag.StringVar(&o.kubernetes, "kubernetes", layout.OwnKubernetes, "minor version of the control plane and the kubelets: 1.34 or 1.35")
	only := flag.String("run", "", "run only scenarios whose name matches this regular expression")
	flag.StringVar((*string)(&o.kills), "kills", string(killsToo), "whether our programs are killed in scenarios that allow it: too (each of them runs a second time, with kills), only (each runs once, with kills) or none (each runs once, without kills)")
	flag.IntVar(&o.parallel, "beside", 1, "number of clusters that run at the same time; each takes 3 GB of memory and one core")
	flag.StringVar(&o.table, "table", "", "file for a table of the last complete runs on these versions")
	flag.StringVar(&o.compatibility, "compatibility", "", "file for the versions of the last complete runs; needs -table")
	last := flag.Bool("last", false, "write the files of -table and -compatibility from the last complete runs, and run nothing")
	flag.Parse()
	if o.compatibility != "" && o.table == "" {
		return errors.New("-compatibility needs -table")
	}
	var err error
	if o.targets, err = o.parseTargets(*cilium); err != nil {
		return err
	}
	if !slices.Contains(killModes, o.kills) {
		return fmt.Errorf("-kills %s: must be one of %v", o.kills, killModes)
	}
	for _, path := range []*string{&o.bin, &o.dir, &o.source} {
		absolute, err := filepath.Abs(*path)
		if err != nil {
			return fmt.Errorf("resolve the path of the folder %q: %w", *path, err)
		}
		*path = absolute
	}
	if o.pairs < 0 {
		return fmt.Errorf("-pairs %d: must not be negative", o.pairs)
	}
	if o.limit < 0 {
		return fmt.Errorf("-limit %s: must not be negative", o.limit)
	}
	if o.parallel < 1 {
		return fmt.Errorf("-beside %d: must be at least 1", o.parallel)
	}
	if o.only, err = regexp.Compile(*only); err != nil {
		return fmt.Errorf("-run %q: %w", *only, err)
	}
	// Warnings of the API server and logs of libraries would clutter the report.
	klog.SetLogger(logr.Discard())
	ctrllog.SetLogger(logr.Discard())
	rest.SetDefaultWarningHandler(rest.NoWarnings{})

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if *last {
		return writeTable(o)
	}
	all, err := runTargets(ctx, o)
	if err != nil {
		return err
	}
	var failed []string
	for _, r := range all {
		if !r.passed() {
			failed = append(failed, "Cilium "+r.at.String())
		}
	}
	if o.table != "" {
		if err := writeTable(o); err != nil {
			return err
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("a scenario failed, or no scenario ran, on %s", strings.Join(failed, ", "))
	}
	return nil
}

// killMode says whether our programs are killed in scenarios that allow it.
type killMode string

const (
	// killsToo runs scenarios that allow kills a second time, while our programs are killed.
	killsToo killMode = "too"
	// killsOnly runs scenarios that allow kills once, while our programs are killed.
	killsOnly killMode = "only"
	// noKills runs scenarios that allow kills once, without kills.
	noKills killMode = "none"
)

var killModes = []killMode{killsToo, killsOnly, noKills}

// target is a version of Cilium and the profile of its run.
type target struct {
	// line is the minor version of Cilium.
	line string
	profile
}

// parseTargets parses the value of -cilium. It returns an error for a target whose cluster cannot be started, for example
// because a version is not known.
func (o options) parseTargets(list string) ([]target, error) {
	var targets []target
	for text := range strings.SplitSeq(list, ",") {
		at := parseTarget(text, o.profile)
		if err := o.layoutOf(at).Validate(); err != nil {
			return nil, fmt.Errorf("-cilium %s: %w", text, err)
		}
		targets = append(targets, at)
	}
	return targets, nil
}

// layoutOf returns the layout of the cluster of a target.
func (o options) layoutOf(at target) layout.Options {
	return layout.Options{
		Cilium: at.line, Kubernetes: at.kubernetes, Nodes: 3, Spare: 1, Families: []string{layout.IPv4, layout.IPv6},
		Routing: at.routing, UpdateRate: o.updateRate,
	}
}

// parseTarget parses an element of -cilium: the minor version of Cilium and, after slashes, a routing or a minor version of
// Kubernetes that overrides the profile of the flags. It takes any text that is no routing for a version of Kubernetes;
// parseTargets refuses unknown versions.
func parseTarget(text string, flags profile) target {
	line, rest, _ := strings.Cut(text, "/")
	t := target{line, flags}
	for part := range strings.SplitSeq(rest, "/") {
		switch part {
		case "":
		case string(layout.Tunnel), string(layout.Native):
			t.routing = layout.Routing(part)
		default:
			t.kubernetes = part
		}
	}
	return t
}

// String returns the element of -cilium for the target, without parts that have their default value.
func (t target) String() string {
	text := t.line
	if t.routing == layout.Native {
		text += "/" + string(layout.Native)
	}
	if t.kubernetes != layout.OwnKubernetes {
		text += "/" + t.kubernetes
	}
	return text
}

// whole reports whether the run is complete: no flag leaves out a scenario, except -routing, and scenarios that allow kills
// also run with kills.
func (o options) whole() bool {
	return o.kills == killsToo && o.only.String() == "" && o.pairs > 0 && o.limit == 0
}

// runTargets runs the scenarios on all targets and returns the results in the order of the targets. An error of one target
// cancels the others.
func runTargets(ctx context.Context, o options) ([]results, error) {
	all := make([]results, len(o.targets))
	running, ctx := errgroup.WithContext(ctx)
	running.SetLimit(o.parallel)
	for i, at := range o.targets {
		running.Go(func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			own := o
			own.profile = at.profile
			var err error
			all[i], err = runTarget(ctx, own, at)
			return err
		})
	}
	return all, running.Wait()
}
