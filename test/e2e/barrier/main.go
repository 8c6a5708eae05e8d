// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Command barrier tests the agent barrier of package agentview with unmodified Cilium agents on real nodes. While it
// asks the agents, it creates and deletes pods and disturbs the agents. It compares each answer with the containers of
// the node. For example:
//
//	barrier -cilium 1.19 -update-rate 15s -nodes 4 -barriers 70
//
// It prints one line for each disturbance, with the number of barriers that were answered, the latency of the answers, the
// number of writes, and the number of errors in the answers. An answer is wrong if
//
//   - a container uses an address that the answer calls clear,
//   - a container gets an address after the answer although the address was withdrawn before the probe was
//     written,
//   - the answer lacks an address that a container has had since before the probe was written,
//   - the answer calls the use of a withdrawn address unknown, and the pool that the agent has processed has a dynamic entry of
//     that address or no entry, or
//   - the agent could not have answered at that time.
//
// Exit status 1: an answer was wrong, a barrier was not answered, or the command failed. Exit status 2: a prerequisite
// is missing on this machine, or the command line cannot be parsed; the message says which.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"fixedip.io/fixedip/hack/realcluster"
	"fixedip.io/fixedip/hack/realcluster/layout"
	"fixedip.io/fixedip/hack/realcluster/preflight"
)

// options contains the command-line flags.
type options struct {
	bin, dir, source string
	cilium           string
	updateRate       time.Duration
	nodes, barriers  int
	only             string
	out              string
}

func main() {
	err := run()
	if err == nil {
		return
	}
	fmt.Fprintf(os.Stderr, "barrier: %v\n", err)
	if missing := (*preflight.Missing)(nil); errors.As(err, &missing) {
		os.Exit(preflight.ExitCode)
	}
	os.Exit(1)
}

func run() error {
	var o options
	flag.StringVar(&o.bin, "bin", "bin", "folder of the programs")
	flag.StringVar(&o.dir, "dir", ".barrier", "work folder of the cluster")
	flag.StringVar(&o.source, "source", ".", "folder of this repository")
	flag.StringVar(&o.cilium, "cilium", "1.19", "minor version of Cilium: 1.18, 1.19 or 1.20")
	flag.DurationVar(&o.updateRate, "update-rate", 15*time.Second, "minimum interval between two reports of an agent")
	flag.IntVar(&o.nodes, "nodes", 4, "number of nodes; each has its own barriers")
	flag.IntVar(&o.barriers, "barriers", 70, "minimum number of barriers; each disturbance gets the same number on each node, so that 70 become 84 with 4 nodes and 7 disturbances")
	flag.StringVar(&o.only, "only", "", "run only these disturbances, separated by commas: idle, pods, restart, labels, stopped, partitioned, no-pool; if empty, all")
	flag.StringVar(&o.out, "out", "", "file to which the result of each barrier is appended as a line of JSON")
	flag.Parse()
	// Warnings of the API server and logs of libraries would be mixed with the report.
	klog.SetLogger(logr.Discard())
	ctrllog.SetLogger(logr.Discard())
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()

	var only []string
	if o.only != "" {
		only = strings.Split(o.only, ",")
	}
	chosen, err := choose(only)
	if err != nil {
		return err
	}
	lab, err := startLab(ctx, o)
	if err != nil {
		return err
	}
	defer lab.stop()
	per := max(1, (o.barriers+len(chosen)*o.nodes-1)/(len(chosen)*o.nodes))
	fmt.Printf("Cilium %s, update rate %s, %d nodes, %d barriers for each disturbance and node\n", o.cilium, o.updateRate, o.nodes, per)
	for _, d := range chosen {
		if err := lab.runDisturbance(ctx, d, per); err != nil {
			return fmt.Errorf("disturbance %s: %w", d.name, err)
		}
	}
	return report(lab.results)
}

// appendResult appends a result as a line of JSON to the file o.out.
func appendResult(o options, r result) error {
	line, err := json.Marshal(struct {
		Cilium string
		Rate   string
		result
	}{o.cilium, o.updateRate.String(), r})
	if err != nil {
		return fmt.Errorf("encode a result: %w", err)
	}
	file, err := os.OpenFile(o.out, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open the file of results: %w", err)
	}
	_, err = fmt.Fprintf(file, "%s\n", line)
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("write a result: %w", err)
	}
	return nil
}

// clusterOptions returns the options of the cluster. No program of fixedip runs on the cluster: instead of starting these
// programs, realcluster.Start calls product, which makes the lab write the pools.
func (o options) clusterOptions(product func(context.Context, *realcluster.Cluster) error) (realcluster.Options, error) {
	source, err := filepath.Abs(o.source)
	if err != nil {
		return realcluster.Options{}, fmt.Errorf("resolve the path of the folder %q: %w", o.source, err)
	}
	c := realcluster.Options{Options: layout.Defaults(), Dir: o.dir, Bin: o.bin, Source: source, Product: product}
	c.Cilium, c.Nodes, c.UpdateRate = o.cilium, o.nodes, o.updateRate
	c.Log = func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
	return c, nil
}
