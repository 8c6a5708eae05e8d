// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Command demo shows fixedip on a separate cluster on this machine: a real API server, the scheduler and the controller as
// separate processes, and three nodes that run Cilium's own allocator. It fails if the address of a pod changes or two pods
// share an address.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/go-logr/logr"
)

func main() {
	bin := flag.String("bin", "bin", "folder of the programs")
	dir := flag.String("dir", "", "work folder; it is emptied first")
	manifests := flag.String("manifests", "manifests", "folder of the manifests")
	keep := flag.Bool("keep", false, "leave the cluster running, and skip the last act, which deletes the StatefulSet")
	record := flag.Duration("record", 0, "time for which three acts are repeated before the last act: a pod is deleted while its node is cordoned, all pods are deleted, and a rolling restart; the metrics of both programs are written to -scrapes during the whole demo")
	scrapes := flag.String("scrapes", "", "folder for the metrics of -record; it must not exist")
	stop := flag.Bool("stop", false, "stop the cluster that was left running in -dir, and do nothing else")
	flag.Parse()
	// The witness uses controller-runtime, which needs a logger.
	ctrllog.SetLogger(logr.Discard())
	if *dir == "" {
		fmt.Fprintln(os.Stderr, "demo: -dir, the work folder, is required")
		os.Exit(2)
	}
	if *stop {
		if err := (&demo{dir: *dir}).stop(); err != nil {
			fmt.Fprintln(os.Stderr, "demo:", err)
			os.Exit(1)
		}
		return
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	d := &demo{bin: *bin, dir: *dir, manifests: *manifests, keep: *keep, began: time.Now()}
	if *record > 0 && *scrapes == "" {
		fmt.Fprintln(os.Stderr, "demo: -record needs -scrapes, the folder for the metrics")
		os.Exit(2)
	}
	if *record > 0 {
		d.recording = &recording{period: *record, folder: *scrapes}
	}
	if err := d.run(ctx); err != nil {
		fmt.Fprint(os.Stderr, d.failure(err))
		os.Exit(1)
	}
}
