// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Command scale measures the cost of our programs in a large cluster, on a real API server that has all objects of such a
// cluster. No kubelets, agents and controller manager run, because they would need real machines. The command fails if the
// controller needs more memory than the limit.
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

	"fixedip.io/fixedip/hack/cluster"
)

func main() {
	s := &scale{began: time.Now()}
	nodes := flag.Int("nodes", 5000, "number of nodes")
	pods := flag.Int("pods", 150000, "number of pods, each with a CiliumEndpoint")
	fixed := flag.Int("fixedips", 50000, "number of these pods that belong to StatefulSets and have a FixedIP")
	flag.IntVar(&s.churn, "churn", 1000, "number of pods that are deleted with their FixedIPs at the end")
	flag.Int64Var(&s.limit, "limit", 1500, "maximum resident memory of the controller in MiB; 0 means no limit")
	flag.StringVar(&s.bin, "bin", "bin", "folder of the programs")
	flag.StringVar(&s.dir, "dir", "", "work folder; it is emptied first")
	flag.StringVar(&s.manifests, "manifests", "manifests", "folder of the manifests")
	flag.StringVar(&s.profiles, "profiles", "", "folder for profiles of the controller's heap; if empty, no profiles are written")
	flag.BoolVar(&s.seeded, "seeded", false, "the work folder already has the objects; do not empty it")
	flag.BoolVar(&s.scheduler, "scheduler", true, "measure the scheduler, too")
	flag.Parse()
	ctrllog.SetLogger(logr.Discard())
	if s.dir == "" {
		fmt.Fprintln(os.Stderr, "scale: -dir is required: the work folder")
		os.Exit(2)
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	w, err := newWorld(*nodes, *pods, *fixed)
	if err == nil {
		s.churn = min(s.churn, *fixed)
		err = s.run(ctx, w)
	}
	switch {
	case err == nil:
		return
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "scale: interrupted")
	default:
		fmt.Fprintf(os.Stderr, "\nscale: FAILED: %v\nThe logs are in %s.\n", err, filepath.Join(s.dir, "logs"))
	}
	os.Exit(1)
}

// scale is one run of the measurement.
type scale struct {
	bin, dir, manifests, profiles string
	churn                         int
	limit                         int64
	seeded, scheduler             bool
	began                         time.Time

	*cluster.Cluster
}

func (s *scale) logf(format string, args ...any) {
	fmt.Printf("%6.1fs  %s\n", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}
