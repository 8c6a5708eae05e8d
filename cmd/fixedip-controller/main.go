// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Command fixedip-controller is the IPAM controller for Cilium's CRD mode: it assigns subnets, fills pools, maintains
// FixedIPs and releases addresses. Several replicas may run; one of them is active.
package main

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/features"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/cli"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // registers --logging-format=json
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"fixedip.io/fixedip/cmd/internal/heap"
	"fixedip.io/fixedip/ipam/controller"
	"fixedip.io/fixedip/ipam/controller/ciliumendpoint"
	ipamconfig "fixedip.io/fixedip/ipam/controller/config"
	"fixedip.io/fixedip/ipam/controller/poolguard"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/scheme"
	"fixedip.io/fixedip/ipam/store/ciliumconfigmap"
	"fixedip.io/fixedip/ipam/store/dryrun"
	"fixedip.io/fixedip/ipam/store/rights"
	"fixedip.io/fixedip/ipam/store/serverversion"
	"fixedip.io/fixedip/ipam/version"
)

// cacheSyncTimeout is the time limit for syncing the caches of a new leader. The default of two minutes is too short for
// 150,000 pods on a busy node.
const cacheSyncTimeout = 30 * time.Minute

// oldestAPIServer is the oldest minor version of Kubernetes whose API server accepts the CustomResourceDefinitions.
const oldestAPIServer = 30

func main() {
	streamInitialLists()
	heap.Apply(heap.Controller)
	if err := cli.RunNoErrOutput(command()); err != nil {
		fmt.Fprintf(os.Stderr, "fixedip-controller: %v\n", err)
		os.Exit(1)
	}
}

// command returns the command fixedip-controller with its subcommand.
func command() *cobra.Command {
	o := &options{}
	logging := logsapi.NewLoggingConfiguration()
	cmd := &cobra.Command{
		Use:   "fixedip-controller",
		Short: "IPAM controller for Cilium with fixed pod addresses",
		Args:  cobra.NoArgs,
		// Print one line for an error, not the usage.
		SilenceUsage: true,
		Version:      version.Fixedip(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			sources, err := resolve(cmd.Flags(), o, os.Getenv)
			if err != nil {
				return err
			}
			if err := logsapi.ValidateAndApply(logging, nil); err != nil {
				return err
			}
			for _, w := range sources.warnings {
				klog.Warning(w)
			}
			return sources.withOrigin(run(o, sources.changed))
		},
	}
	o.addFlags(cmd.Flags())
	logsapi.AddFlags(logging, cmd.Flags())
	addAliases(cmd.Flags())
	cmd.AddCommand(uninstallCommand())
	cmd.CompletionOptions.DisableDefaultCmd = true
	cmd.SetVersionTemplate(version.Text(cmd.Use) + "\n")
	return cmd
}

func run(o *options, changed func(flag string) bool) error {
	// Validate the settings before the first request: most errors are found without the API server.
	cfg, err := o.config(changed)
	if err != nil {
		return err
	}
	ctx := ctrl.SetupSignalHandler()
	ctrl.SetLogger(klog.NewKlogr())
	kubeconfig, err := o.restConfig()
	if err != nil {
		return err
	}
	apiServer, err := discovery.NewDiscoveryClientForConfig(kubeconfig)
	if err != nil {
		return fmt.Errorf("create a discovery client: %w", err)
	}
	if err := serverversion.Check(ctx, apiServer, oldestAPIServer, "the CustomResourceDefinitions use CEL functions for IP addresses"); err != nil {
		return err
	}
	reviews, err := authorizationclient.NewForConfig(kubeconfig)
	if err != nil {
		return fmt.Errorf("create a client that checks the rights of the controller: %w", err)
	}
	metrics := o.metricsOptions(rest.CopyConfig(kubeconfig))
	if o.DryRun {
		dry := &dryrun.Run{Log: klog.Background().WithName("dry-run")}
		kubeconfig.Wrap(dry.Wrap)
		defer func() { dry.Log.Info("Dry run ended; no write was stored", "writes", dry.Writes()) }()
	}
	kinds, err := scheme.New()
	if err != nil {
		return err
	}
	live, err := client.New(kubeconfig, client.Options{Scheme: kinds})
	if err != nil {
		return fmt.Errorf("create a client without a cache: %w", err)
	}
	if err := rights.Check(ctx, reviews.SelfSubjectAccessReviews(), live.RESTMapper(), "fixedip-controller", needs(cfg)...); err != nil {
		return err
	}
	cilium, err := ciliumconfigmap.Read(ctx, ciliumconfigmap.FromClient(live), cfg.CiliumConfig)
	if err != nil {
		return err
	}
	o.cilium = &cilium
	if cfg, err = o.config(changed); err != nil {
		return err
	}
	if err := disableEndpointKeeper(ctx, live, &cfg); err != nil {
		return err
	}
	mgr, err := manager.New(kubeconfig, manager.Options{
		Scheme:                        kinds,
		Client:                        client.Options{DryRun: &o.DryRun},
		Cache:                         controller.CacheOptions(cfg),
		Metrics:                       metrics,
		HealthProbeBindAddress:        o.healthProbeBindAddress,
		PprofBindAddress:              o.pprofBindAddress,
		LeaderElection:                o.leaderElection && !o.DryRun,
		LeaderElectionNamespace:       cfg.Namespace,
		LeaderElectionID:              o.leaderElectionID,
		LeaseDuration:                 &o.leaseDuration,
		RenewDeadline:                 &o.renewDeadline,
		RetryPeriod:                   &o.retryPeriod,
		LeaderElectionReleaseOnCancel: true,
		// The process exits if the caches have not synced within this time.
		Controller: config.Controller{CacheSyncTimeout: cacheSyncTimeout},
	})
	if err != nil {
		return fmt.Errorf("create the manager: %w", err)
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	if err := controller.Setup(ctx, mgr, cfg); err != nil {
		return err
	}
	if err := mgr.Add(afterCaches(debug.FreeOSMemory)); err != nil {
		return fmt.Errorf("add the collection of garbage after the start to the manager: %w", err)
	}
	if !o.DryRun {
		if err := mgr.Add(&poolguard.Guard{API: live, Namespace: cfg.Namespace, ClusterPools: cfg.ClusterPools}); err != nil {
			return fmt.Errorf("add the writer of the cluster pools for the admission policy to the manager: %w", err)
		}
	}
	return mgr.Start(ctx)
}

// afterCaches is a runnable of a manager. It calls the function once when the caches are filled, on each replica. Without a
// collection of garbage then, what the lists needed would still be in memory when the controllers begin to work.
type afterCaches func()

func (f afterCaches) Start(context.Context) error {
	f()
	return nil
}

// NeedLeaderElection returns false: the caches of a replica that waits for the lease are filled as well.
func (afterCaches) NeedLeaderElection() bool { return false }

// needs returns the rights that the settings workloads and protectNodesFrom require. Those for StatefulSets are always
// among them, and those to watch ReplicaSets if a kind has slots. A dry run does not need the right for protectNodesFrom.
func needs(cfg ipamconfig.Config) (list []rights.Need) {
	kinds := identity.NewKinds(cfg.Workloads...)
	for _, k := range kinds.All() {
		list = append(list, rights.Need{Kind: k.GroupKind(), Verbs: []string{"get", "list", "watch"}, Setting: "workloads"})
	}
	if kinds.ResolveReplicaSets() {
		list = append(list, rights.Need{Kind: identity.ReplicaSets, Verbs: []string{"list", "watch"}, Setting: "workloads"})
	}
	if len(cfg.ProtectNodesFrom) > 0 && !cfg.DryRun {
		list = append(list, rights.Need{Kind: corev1.SchemeGroupVersion.WithKind("Node").GroupKind(), Verbs: []string{"patch"}, Setting: "protectNodesFrom"})
	}
	return list
}

// disableEndpointKeeper disables the maintenance of CiliumEndpoints in cfg if Cilium creates no CiliumEndpoints. It
// returns an error if it cannot find that out.
func disableEndpointKeeper(ctx context.Context, live client.Client, cfg *ipamconfig.Config) (err error) {
	if !cfg.Verify.Endpoints {
		return nil
	}
	cfg.Verify.Endpoints, err = ciliumendpoint.Enabled(ctx, live, cfg.CiliumConfig)
	if err == nil && !cfg.Verify.Endpoints {
		klog.FromContext(ctx).Info("Cilium creates no CiliumEndpoints; the controller neither repairs CiliumEndpoints nor evicts pods without one")
	}
	return err
}

// watchListVariable is the environment variable that enables or disables client-go's feature WatchListClient.
const watchListVariable = "KUBE_FEATURE_" + string(features.WatchListClient)

// streamInitialLists enables client-go's feature WatchListClient, which is disabled by default before v1.35, unless the
// environment sets it. An informer then receives its initial list as a stream and transforms one object at a time. An
// ordinary list from the API server's cache arrives in one response, whatever its page size is: with 150,000 pods, that
// response alone would take more memory than the rest of the process. If the API server does not stream (it is older than
// v1.32, or its feature WatchList is disabled), client-go requests an ordinary list instead.
//
// Call streamInitialLists before the first client is created, because client-go reads the environment once.
func streamInitialLists() {
	if _, set := os.LookupEnv(watchListVariable); set {
		return
	}
	// Setenv fails only for an invalid name.
	_ = os.Setenv(watchListVariable, "true")
}
