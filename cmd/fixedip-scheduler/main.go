// Command fixedip-scheduler is a kube-scheduler with the plugin FixedIP and those of
// sigs.k8s.io/scheduler-plugins. It runs beside the cluster's own scheduler, for the workloads that
// name it in schedulerName.
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
	// The plugin's client and cache are controller-runtime's.
	ctrllog.SetLogger(klog.Background())
	command := app.NewSchedulerCommand(options()...)
	command.Use = "fixedip-scheduler"
	// A mistake is told in one line, which a page of flags would bury.
	command.SilenceUsage = true
	if err := cli.RunNoErrOutput(command); err != nil {
		fmt.Fprintf(os.Stderr, "fixedip-scheduler: %v\n", err)
		os.Exit(1)
	}
}
