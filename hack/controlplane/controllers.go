// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	kcmoptions "k8s.io/kubernetes/cmd/kube-controller-manager/app/options"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
)

// enabledControllers contains the names of the controllers that a cluster with pods and volumes needs. Among others, it
// leaves out the controllers of certificates and attachable volumes, and those that need a cloud or a pod network.
var enabledControllers = []string{
	names.ServiceAccountTokenController,
	names.ServiceAccountController,
	names.RootCACertificatePublisherController,
	names.NamespaceController,
	names.GarbageCollectorController,
	names.PodGarbageCollectorController,
	names.TTLController,
	names.TTLAfterFinishedController,
	names.ReplicaSetController,
	names.ReplicationControllerController,
	names.DeploymentController,
	names.StatefulSetController,
	names.DaemonSetController,
	names.JobController,
	names.CronJobController,
	names.DisruptionController,
	names.NodeLifecycleController,
	names.TaintEvictionController,
	names.EndpointSliceController,
	names.ClusterRoleAggregationController,
	names.ResourceQuotaController,
	names.PersistentVolumeBinderController,
	names.PersistentVolumeClaimProtectionController,
	names.PersistentVolumeProtectionController,
}

// builtinNamespaces are the namespaces whose default service account must exist before the control plane is ready, because
// no pod can be created in a namespace without this account.
var builtinNamespaces = []string{"default", "kube-system", "kube-public", "kube-node-lease"}

// controllerConfig contains the settings of the controller manager that depend on options and on other parts.
type controllerConfig struct {
	kubeconfig             string
	keys                   *pki
	nodeMonitorGracePeriod time.Duration
	podGCThreshold         int
	// nodeCIDRs are the CIDRs from which the controller manager allocates Node.spec.podCIDRs. nodeCIDRMaskSizes are the
	// prefix lengths of the allocated subnets, one for each CIDR. If both are empty, no subnets are allocated.
	nodeCIDRs         []string
	nodeCIDRMaskSizes []int
}

// nodeIPAMArgs returns the arguments of the controller that allocates Node.spec.podCIDRs; nil if nodeCIDRs is empty. The
// flag of the prefix length has a family suffix only if there are two families.
func (c controllerConfig) nodeIPAMArgs() []string {
	if len(c.nodeCIDRs) == 0 {
		return nil
	}
	args := []string{"--allocate-node-cidrs=true", "--cluster-cidr=" + strings.Join(c.nodeCIDRs, ",")}
	for i, size := range c.nodeCIDRMaskSizes {
		flag := "--node-cidr-mask-size"
		switch {
		case len(c.nodeCIDRs) == 1:
		case netip.MustParsePrefix(c.nodeCIDRs[i]).Addr().Is6():
			flag += "-ipv6"
		default:
			flag += "-ipv4"
		}
		args = append(args, fmt.Sprintf("%s=%d", flag, size))
	}
	return args
}

// controllerManager is a configured controller manager.
type controllerManager struct {
	options         *kcmoptions.KubeControllerManagerOptions
	known, disabled []string
	aliases         map[string]string
}

// newControllerManager configures the controller manager. Call newControllerManager before startAPIServer, because
// KubeControllerManagerOptions.Flags changes the default of the feature gate WatchListClient. Flags panics if the feature
// gates have already been added to a flag set, which startAPIServer does.
func newControllerManager(c controllerConfig) (*controllerManager, error) {
	o, err := kcmoptions.NewKubeControllerManagerOptions()
	if err != nil {
		return nil, fmt.Errorf("create the options of the controller manager: %w", err)
	}
	known, disabled, aliases := app.KnownControllers(), app.ControllersDisabledByDefault(), app.ControllerAliases()
	fs := pflag.NewFlagSet("kube-controller-manager", pflag.ContinueOnError)
	named := o.Flags(known, disabled, aliases)
	for _, set := range named.FlagSets {
		fs.AddFlagSet(set)
	}
	enabled := enabledControllers
	if len(c.nodeCIDRs) > 0 {
		enabled = append(slices.Clone(enabled), names.NodeIpamController)
	}
	args := append([]string{
		"--kubeconfig=" + c.kubeconfig,
		"--controllers=" + strings.Join(enabled, ","),
		"--leader-elect=false",
		"--secure-port=0",
		"--service-account-private-key-file=" + c.keys.serviceAccountKeyFile,
		"--root-ca-file=" + c.keys.caFile,
		"--kube-api-qps=" + strconv.Itoa(clientQPS),
		"--kube-api-burst=" + strconv.Itoa(clientBurst),
		"--node-monitor-grace-period=" + c.nodeMonitorGracePeriod.String(),
		"--terminated-pod-gc-threshold=" + strconv.Itoa(c.podGCThreshold),
	}, c.nodeIPAMArgs()...)
	if err := fs.Parse(args); err != nil {
		return nil, fmt.Errorf("configure the controller manager: %w", err)
	}
	o.ParsedFlags = &named
	return &controllerManager{options: o, known: known, disabled: disabled, aliases: aliases}, nil
}

// start starts the controller manager, which runs until ctx ends.
func (m *controllerManager) start(ctx context.Context) (*part, error) {
	config, err := m.options.Config(ctx, m.known, m.disabled, m.aliases)
	if err != nil {
		return nil, fmt.Errorf("complete the options of the controller manager: %w", err)
	}
	done := make(chan error, 1)
	go func() { done <- app.Run(ctx, config.Complete()); close(done) }()
	return &part{done: done}, nil
}

// waitServiceAccounts waits until the default service account exists in every built-in namespace.
func waitServiceAccounts(ctx context.Context, cfg *rest.Config) error {
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("create a client for the API server: %w", err)
	}
	lw := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "serviceaccounts", metav1.NamespaceAll,
		fields.OneTermEqualSelector("metadata.name", "default"))
	missing := sets.New(builtinNamespaces...)
	_, err = watchtools.UntilWithSync(ctx, lw, &corev1.ServiceAccount{}, nil, func(e watch.Event) (bool, error) {
		if account, ok := e.Object.(*corev1.ServiceAccount); ok && e.Type != watch.Deleted {
			missing.Delete(account.Namespace)
		}
		return missing.Len() == 0, nil
	})
	if err != nil {
		return fmt.Errorf("wait for the default service accounts of namespaces %v: %w", sets.List(missing), err)
	}
	return nil
}
