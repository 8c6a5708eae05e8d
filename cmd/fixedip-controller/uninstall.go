// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/controller/uninstall"
	"fixedip.io/fixedip/ipam/scheme"
)

// uninstallOptions contains the values of the flags of the subcommand uninstall.
type uninstallOptions struct {
	// process contains the values of the controller's flags. The subcommand uses those of the client and of leader election.
	process    options
	deployment string
	timeout    time.Duration
}

// uninstallFlags are the flags of the controller that the subcommand has too.
var uninstallFlags = []string{"kubeconfig", "kube-api-qps", "kube-api-burst", "leader-election-namespace", "leader-election-id", "leader-election-lease-duration", "leader-election-renew-deadline", "leader-election-retry-period"}

// uninstallCommand returns the subcommand that a user, or a hook of the chart, runs before the controller is removed.
func uninstallCommand() *cobra.Command {
	o := &uninstallOptions{}
	logging := logsapi.NewLoggingConfiguration()
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.process.addFlags(all)
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Stop the controller and remove the finalizers of FixedIPs, so that no deletion waits for a controller",
		Long: `Prepare the removal of fixedip: scale the Deployment of the controller to 0 replicas, wait until no controller is active, remove
the finalizers of all FixedIPs, and remove the annotations of Nodes for autoscalers. FixedIPs, NodeSubnets and pools stay, and
running pods keep running with their addresses. If the command fails, it scales the Deployment back.`,
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s := &settings{fs: cmd.Flags(), origins: map[string]string{}}
			if err := s.readEnvironment(os.Getenv); err != nil {
				return err
			}
			if err := logsapi.ValidateAndApply(logging, nil); err != nil {
				return err
			}
			return s.withOrigin(o.run())
		},
	}
	for _, name := range uninstallFlags {
		cmd.Flags().AddFlag(all.Lookup(name))
	}
	logsapi.AddFlags(logging, cmd.Flags())
	cmd.Flags().StringVar(&o.deployment, "deployment", "fixedip-controller", "Name of the Deployment of the controller, in --leader-election-namespace. Set it to an empty value if you have stopped the controller yourself")
	cmd.Flags().DurationVar(&o.timeout, "timeout", 4*time.Minute, "Maximum time for all steps, including the termination of the pods of the controller")
	return cmd
}

// run prepares the removal of the controller.
func (o *uninstallOptions) run() error {
	namespace := o.process.Namespace
	if namespace == "" {
		namespace = ownNamespace(o.process.kubeconfig)
	}
	// The subcommand always takes part in leader election, even if the controller runs without leader election.
	o.process.leaderElection = true
	o.process.metricsBindAddress, o.process.healthProbeBindAddress, o.process.pprofBindAddress = "0", "0", "0"
	if errs := o.process.validate(namespace); len(errs) > 0 {
		return fmt.Errorf("--%w", errs[0])
	}
	kubeconfig, err := o.process.restConfig()
	if err != nil {
		return err
	}
	ctrl.SetLogger(klog.NewKlogr())
	ctx, cancel := context.WithTimeoutCause(ctrl.SetupSignalHandler(), o.timeout, fmt.Errorf("not done within --timeout %v", o.timeout))
	defer cancel()
	kinds, err := scheme.New()
	if err != nil {
		return err
	}
	api, err := client.New(kubeconfig, client.Options{Scheme: kinds})
	if err != nil {
		return fmt.Errorf("create a client: %w", err)
	}
	clientset, err := kubernetes.NewForConfig(kubeconfig)
	if err != nil {
		return fmt.Errorf("create a client for the Lease: %w", err)
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("read the host name: %w", err)
	}
	u := &uninstall.Uninstall{
		Client: api, Kubernetes: clientset, Identity: host + "_uninstall_" + string(uuid.NewUUID()),
		Deployment:    types.NamespacedName{Namespace: namespace, Name: o.deployment},
		Lease:         types.NamespacedName{Namespace: namespace, Name: o.process.leaderElectionID},
		LeaseDuration: o.process.leaseDuration, RenewDeadline: o.process.renewDeadline, RetryPeriod: o.process.retryPeriod,
	}
	if err := u.Run(ctx); err != nil {
		return fmt.Errorf("prepare the removal of fixedip: %w", err)
	}
	return nil
}
