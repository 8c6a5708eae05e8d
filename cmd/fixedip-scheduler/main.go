// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Command fixedip-scheduler is a kube-scheduler with the FixedIP plugin and the plugins of
// sigs.k8s.io/scheduler-plugins. It runs beside the default scheduler and places the pods that name it in schedulerName.
package main

import (
	"fmt"
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // metrics of the API client
	_ "k8s.io/component-base/metrics/prometheus/version"  // metric of the build's version
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

func main() {
	// The client and cache of the plugin are those of controller-runtime.
	ctrllog.SetLogger(klog.Background())
	command := app.NewSchedulerCommand(options()...)
	command.Use = "fixedip-scheduler"
	// Print one line for an error, not the usage.
	command.SilenceUsage = true
	if err := cli.RunNoErrOutput(command); err != nil {
		fmt.Fprintf(os.Stderr, "fixedip-scheduler: %v\n", err)
		os.Exit(1)
	}
}
