// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Command scheduler measures how fast pods are scheduled in a large cluster: by our scheduler and, in the same run, by the
// same program without FixedIP. The API server and etcd are real; no kubelets, agents or controller manager run.
//
// A round runs each arm once: it creates the pods of the arm, starts the scheduler, watches its binds, and deletes the pods.
// Arm S runs the scheduler of command patcher. Arm P has neither pods nor a scheduler: it only patches CiliumNodes. The arms
// alternate, so that other load affects all of them equally. The command prints medians. With -out it also writes all figures
// as JSON and charts as SVG.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

func main() {
	b := &bench{began: time.Now()}
	flag.IntVar(&b.size.Nodes, "nodes", 500, "number of nodes")
	bound := flag.Int("bound", 0, "number of running pods on each node, two thirds of them without a fixed address")
	flag.IntVar(&b.size.Searching, "searching", 0, "number of pods that wait for a slot while pods are scheduled with FixedIP")
	flag.IntVar(&b.pods, "pods", 1000, "number of pods of each arm; arm E always has 100")
	flag.IntVar(&b.rounds, "rounds", 5, "number of rounds")
	flag.IntVar(&b.qps, "qps", 500, "maximum number of requests per second of a scheduler")
	flag.BoolVar(&b.reports, "reports", false, "simulate agents: write status.ipam of each CiliumNode every 15 s")
	arms := flag.String("arms", "", "names of the arms to run, separated by commas; if empty, all, or with -limits those that the limits need")
	flag.StringVar(&b.bin, "bin", "bin", "folder of the programs")
	flag.StringVar(&b.dir, "dir", "", "work folder; it is emptied first")
	flag.StringVar(&b.manifests, "manifests", "manifests", "folder of the manifests")
	flag.StringVar(&b.out, "out", "", "folder for the figures as JSON and SVG; if empty, they are only printed")
	flag.StringVar(&b.profiles, "profiles", "", "folder for profiles of the schedulers' CPU time and memory; if empty, no profiles are written")
	limits := flag.String("limits", "", "file of limits to compare the figures with; if empty, they are not compared")
	flag.StringVar(&b.commit, "commit", "", "commit of the programs, for the report")
	flag.Parse()
	ctrllog.SetLogger(logr.Discard())
	if b.dir == "" {
		fmt.Fprintln(os.Stderr, "scheduler: -dir is required: the work folder")
		os.Exit(2)
	}
	if *limits != "" {
		var err error
		if b.limits, err = readLimits(*limits); err != nil {
			fmt.Fprintf(os.Stderr, "scheduler: -limits=%s: %v\n", *limits, err)
			os.Exit(2)
		}
	}
	if *arms != "" {
		b.only = strings.Split(*arms, ",")
	}
	if unknown := slices.DeleteFunc(slices.Clone(b.only), func(name string) bool {
		return slices.ContainsFunc(allArms, func(a arm) bool { return a.name == name })
	}); len(unknown) > 0 {
		fmt.Fprintf(os.Stderr, "scheduler: -arms=%s: there is no arm %s\n", *arms, unknown[0])
		os.Exit(2)
	}
	running := b.size.Nodes * *bound
	b.size.Fixed, b.size.Ordinary = running/3, running-running/3
	b.size.Expected, b.size.Absent, b.size.Unplaced = b.pods, b.pods, max(b.pods, oneNodePods)
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	switch err := b.run(ctx); {
	case err == nil:
		return
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "scheduler: interrupted")
	default:
		fmt.Fprintf(os.Stderr, "\nscheduler: FAILED: %v\nThe logs are in %s.\n", err, filepath.Join(b.dir, "logs"))
	}
	os.Exit(1)
}
