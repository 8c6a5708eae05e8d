// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Command controller measures the time, memory and writes of the controller in a large cluster: at its start, and for
// each change after it. The API server is real and has all objects of such a cluster. No scheduler, controller manager,
// kubelets or agents run. For each change, the command makes the writes that these programs would make, but it does not
// answer agent barriers.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"fixedip.io/fixedip/test/bench/world"
)

func main() {
	b := &bench{began: time.Now()}
	size := world.Size{}
	flag.IntVar(&size.Nodes, "nodes", 5000, "number of nodes")
	pods := flag.Int("pods", 150000, "number of pods, each with a CiliumEndpoint")
	flag.IntVar(&size.Fixed, "fixedips", 50000, "number of pods, among those of -pods, that belong to StatefulSets and have a FixedIP")
	flag.IntVar(&b.joining, "join", 200, "number of nodes that join")
	flag.IntVar(&b.restarted, "restart", 10000, "number of pods that are restarted")
	flag.IntVar(&b.released, "release", 10000, "number of pods whose workloads are deleted; they are on at most 1,000 nodes")
	flag.IntVar(&b.ending, "ending", 32, "number of nodes on which the pods of the deleted workloads end at the same time; on each node, pods end one after another. A larger number means more concurrent requests, to which an API server on the same cores responds more slowly")
	flag.BoolVar(&b.adopted, "adopt", false, "start without FixedIPs, and measure how the controller creates them from the pool entries, instead of measuring changes")
	flag.DurationVar(&b.idle, "idle", 10*time.Minute, "duration of the step without changes, which precedes the release of addresses")
	flag.StringVar(&b.bin, "bin", "bin", "folder of the programs")
	flag.StringVar(&b.dir, "dir", "", "work folder; it is emptied first")
	flag.StringVar(&b.manifests, "manifests", "manifests", "folder of the manifests")
	flag.StringVar(&b.profiles, "profiles", "", "folder for profiles of the controller's CPU time and heap in each step; if empty, no profiles are written")
	flag.StringVar(&b.out, "out", "", "file for the figures as JSON; if empty, they are only printed")
	flag.StringVar(&b.commit, "commit", "", "commit of the programs, for the report")
	flag.Parse()
	ctrllog.SetLogger(logr.Discard())
	if b.dir == "" {
		fmt.Fprintln(os.Stderr, "controller: -dir is required: the work folder")
		os.Exit(2)
	}
	if b.ending < 1 {
		fmt.Fprintf(os.Stderr, "controller: -ending %d: must be at least 1\n", b.ending)
		os.Exit(2)
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	size.Ordinary = *pods - size.Fixed
	size.WithoutFixedIPs = b.adopted
	w, err := world.New(size)
	if err == nil {
		b.world = w
		err = b.run(ctx)
	}
	switch {
	case err == nil:
		return
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "controller: interrupted")
	default:
		fmt.Fprintf(os.Stderr, "\ncontroller: FAILED: %v\nThe logs are in %s.\n", err, filepath.Join(b.dir, "logs"))
	}
	os.Exit(1)
}
