// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Command fixedip-scheduler is a kube-scheduler with the FixedIP plugin and the plugins of
// sigs.k8s.io/scheduler-plugins. It runs beside the default scheduler and places the pods that name it in schedulerName.
package main

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/spf13/cobra"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // registers --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // registers the metrics of client-go
	_ "k8s.io/component-base/metrics/prometheus/version"  // registers the metric of the build version
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	_ "sigs.k8s.io/scheduler-plugins/apis/config/scheme" // registers the plugin arguments for the configuration file
	"sigs.k8s.io/scheduler-plugins/pkg/capacityscheduling"
	"sigs.k8s.io/scheduler-plugins/pkg/coscheduling"
	"sigs.k8s.io/scheduler-plugins/pkg/networkaware/networkoverhead"
	"sigs.k8s.io/scheduler-plugins/pkg/networkaware/topologicalsort"
	"sigs.k8s.io/scheduler-plugins/pkg/noderesources"
	"sigs.k8s.io/scheduler-plugins/pkg/noderesourcetopology"
	"sigs.k8s.io/scheduler-plugins/pkg/podstate"
	"sigs.k8s.io/scheduler-plugins/pkg/preemptiontoleration"
	"sigs.k8s.io/scheduler-plugins/pkg/qos"
	"sigs.k8s.io/scheduler-plugins/pkg/sysched"
	"sigs.k8s.io/scheduler-plugins/pkg/trimaran/loadvariationriskbalancing"
	"sigs.k8s.io/scheduler-plugins/pkg/trimaran/lowriskovercommitment"
	"sigs.k8s.io/scheduler-plugins/pkg/trimaran/peaks"
	"sigs.k8s.io/scheduler-plugins/pkg/trimaran/targetloadpacking"

	"fixedip.io/fixedip/cmd/internal/heap"
	"fixedip.io/fixedip/ipam/version"
	"fixedip.io/fixedip/plugins/fixedip"
)

func main() {
	// controller-runtime, whose client and cache the plugin uses, logs through klog.
	ctrllog.SetLogger(klog.Background())
	command := app.NewSchedulerCommand(options()...)
	command.Use = "fixedip-scheduler"
	run := command.RunE
	command.RunE = func(cmd *cobra.Command, args []string) error {
		// --version is a flag of kube-scheduler, which would print only the version of Kubernetes.
		if cmd.Flags().Lookup("version").Changed {
			fmt.Println(version.Text(command.Use))
			return nil
		}
		return run(cmd, args)
	}
	// Print one line for an error, not the usage.
	command.SilenceUsage = true
	if err := cli.RunNoErrOutput(command); err != nil {
		fmt.Fprintf(os.Stderr, "fixedip-scheduler: %v\n", err)
		os.Exit(1)
	}
}

// plugins returns the plugins that a profile may enable in addition to those of Kubernetes: FixedIP, and all plugins of
// the scheduler of sigs.k8s.io/scheduler-plugins, so that a cluster needs only one secondary scheduler. A plugin that no
// profile enables is not instantiated. Key: the name of the plugin.
func plugins() runtime.Registry {
	return runtime.Registry{
		fixedip.Name: withHeapRule(fixedip.Factory()),

		capacityscheduling.Name:         capacityscheduling.New,
		coscheduling.Name:               coscheduling.New,
		loadvariationriskbalancing.Name: loadvariationriskbalancing.New,
		networkoverhead.Name:            networkoverhead.New,
		topologicalsort.Name:            topologicalsort.New,
		noderesources.AllocatableName:   noderesources.NewAllocatable,
		noderesourcetopology.Name:       noderesourcetopology.New,
		preemptiontoleration.Name:       preemptiontoleration.New,
		targetloadpacking.Name:          targetloadpacking.New,
		lowriskovercommitment.Name:      lowriskovercommitment.New,
		sysched.Name:                    sysched.New,
		peaks.Name:                      peaks.New,
		podstate.Name:                   podstate.New,
		qos.Name:                        qos.New,
	}
}

// withHeapRule returns a factory that applies heap.Scheduler to the process before it first calls the given factory. Without a
// profile that enables FixedIP, Go's default growth of the heap remains.
func withHeapRule(factory runtime.PluginFactory) runtime.PluginFactory {
	var once sync.Once
	return func(ctx context.Context, args k8sruntime.Object, handle framework.Handle) (framework.Plugin, error) {
		once.Do(func() { heap.Apply(heap.Scheduler) })
		return factory(ctx, args, handle)
	}
}

// options returns the plugins as options of the kube-scheduler command.
func options() []app.Option {
	var list []app.Option
	for name, factory := range plugins() {
		list = append(list, app.WithPlugin(name, factory))
	}
	return list
}
