// Command fixedip-controller is the IPAM controller for Cilium's CRD mode: subnets, pools, records
// and their release. Any number of replicas may run; one of them leads.
package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/component-base/version/verflag"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"fixedip.io/fixedip/ipam/controller"
	"fixedip.io/fixedip/ipam/scheme"
)

// cacheSyncTimeout bounds the time that a new leader's controllers take to look at all objects. Two minutes,
// the default, are too short for 150,000 pods on a machine that is busy with other things.
const cacheSyncTimeout = 30 * time.Minute

func main() {
	streamInitialLists()
	if err := cli.RunNoErrOutput(command()); err != nil {
		fmt.Fprintf(os.Stderr, "fixedip-controller: %v\n", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	o := defaults()
	logging := logsapi.NewLoggingConfiguration()
	cmd := &cobra.Command{
		Use:   "fixedip-controller",
		Short: "Gives Cilium nodes their subnets and pods their address for life",
		Args:  cobra.NoArgs,
		// A mistake is told in one line, which a page of flags would bury.
		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			verflag.PrintAndExitIfRequested()
			given, err := settle(cmd.Flags(), o.configFile, os.Getenv)
			if err != nil {
				return err
			}
			if err := logsapi.ValidateAndApply(logging, nil); err != nil {
				return err
			}
			for _, w := range given.warnings {
				klog.Warning(w)
			}
			return given.explain(run(o))
		},
	}
	o.addFlags(cmd.Flags())
	logsapi.AddFlags(logging, cmd.Flags())
	verflag.AddFlags(cmd.Flags())
	addAliases(cmd.Flags())
	return cmd
}

func run(o *options) error {
	cfg, err := o.config()
	if err != nil {
		return err
	}
	ctx := ctrl.SetupSignalHandler()
	ctrl.SetLogger(klog.NewKlogr())
	kubeconfig, err := o.restConfig()
	if err != nil {
		return err
	}
	kinds, err := scheme.New()
	if err != nil {
		return err
	}
	mgr, err := manager.New(kubeconfig, manager.Options{
		Scheme:                        kinds,
		Cache:                         controller.CacheOptions(cfg),
		Metrics:                       server.Options{BindAddress: o.metricsBindAddress},
		HealthProbeBindAddress:        o.healthProbeBindAddress,
		PprofBindAddress:              o.pprofBindAddress,
		LeaderElection:                o.leaderElection && !o.dryRun,
		LeaderElectionNamespace:       o.leaderElectionNamespace,
		LeaderElectionID:              o.leaderElectionID,
		LeaseDuration:                 &o.leaseDuration,
		RenewDeadline:                 &o.renewDeadline,
		RetryPeriod:                   &o.retryPeriod,
		LeaderElectionReleaseOnCancel: true,
		// A controller that has not been shown all objects by then ends the process, which would only
		// begin anew.
		Controller: config.Controller{CacheSyncTimeout: cacheSyncTimeout},
	})
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	if err := controller.Setup(ctx, mgr, cfg); err != nil {
		return err
	}
	return mgr.Start(ctx)
}
