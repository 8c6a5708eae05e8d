// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"fixedip.io/fixedip/ipam/controller/config"
	"fixedip.io/fixedip/ipam/controller/conformance"
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/core/configuration"
	"fixedip.io/fixedip/ipam/store/ciliumconfigmap"
)

// options contains the values of the flags. The method config computes the fields of Config that no flag sets directly.
type options struct {
	config.Config
	// file is the configuration in the file of --config, without defaults; the zero value if there is no file.
	file       configuration.Configuration
	configFile string
	// ciliumConfig names the ConfigMap of Cilium, and cilium contains the settings in it. cilium is nil until the settings
	// have been read.
	ciliumConfig string
	cilium       *configuration.CiliumSettings
	kubeconfig   string
	qps          float32
	burst        int
	// shared contains the values of the flags that set fields of the configuration (see sharedFlags).
	shared        sharedValues
	staticPodIPv6 bool

	leaderElection                            bool
	leaderElectionID                          string
	leaseDuration, renewDeadline, retryPeriod time.Duration

	metricsBindAddress, healthProbeBindAddress, pprofBindAddress string
	metricsSecure                                                bool
}

// addFlags adds the flags, and sets the options to their defaults.
func (o *options) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.configFile, "config", "", "YAML file of kind "+configuration.Kind+", which fixedip-scheduler reads too; flags of the same settings take precedence")
	fs.StringVar(&o.ciliumConfig, "cilium-config", ciliumconfigmap.Default, "ConfigMap of Cilium, as namespace/name, that settings and timeouts are adapted to; fixedip-scheduler has to read the same one (ciliumConfig in FixedIPArgs). Defaults apply if it does not exist or may not be read")
	fs.StringVar(&o.kubeconfig, "kubeconfig", "", "Kubeconfig file; if empty, the service account of the pod is used. Default: environment variable KUBECONFIG")
	// Releasing a thousand addresses at once takes three requests for each address. The API server has its own limits.
	fs.Float32Var(&o.qps, "kube-api-qps", 500, "Maximum number of requests per second to the API server, on average, of each client and for each kind of object; the controller as a whole may send more")
	fs.IntVar(&o.burst, "kube-api-burst", 1000, "Maximum number of requests to the API server in a burst, during which the rate may exceed --kube-api-qps")

	o.shared.addFlags(fs)
	fs.IntVar(&o.Watermark.Excess, "max-surplus-ips", 8, "Maximum number of free dynamic addresses in the pool of a node, per family, in addition to --min-free-ips. If more are free, addresses are withdrawn until --min-free-ips plus half of this number are free")
	fs.IntVar(&o.WritesPerMinute, "node-writes-per-minute", 60, "Maximum number of writes of the controller to one CiliumNode per minute, of which half may be sent in one burst. Writes that undo a change or restore an entry count, but are not delayed")
	fs.BoolVar(&o.StripManagedFields, "strip-managed-fields", true, "Remove metadata.managedFields of CiliumNodes, which is about half of their size")
	fs.DurationVar(&o.Cooldown, "address-cooldown", time.Minute, "Minimum time for which an address that was released, or withdrawn for a pod that runs with it, is offered to no other pod; surplus addresses have no minimum. The cooldown then ends when the agent of the node has confirmed that no pod uses the address; if the agent still reports the address as used, the cooldown starts again")

	o.Verify = conformance.DefaultConfig()
	v := &o.Verify
	fs.DurationVar(&v.RestartAfter, "mismatch-grace-period", v.RestartAfter, "Minimum time for which a pod runs with a wrong address before it is evicted; should be longer than agents take to see a pool entry. For a missing CiliumEndpoint, --cep-grace-period applies")
	fs.IntVar(&v.Restarts, "max-concurrent-restarts", v.Restarts, "Maximum number of pods that restart at the same time because of a mismatch")
	fs.BoolVar(&v.Endpoints, "enable-cep-keeper", v.Endpoints, "Repair CiliumEndpoints, and evict pods with a fixed address whose CiliumEndpoint stays missing. Has no effect if Cilium creates no CiliumEndpoints (disable-endpoint-crd)")
	fs.DurationVar(&v.EndpointGracePeriod, "cep-grace-period", v.EndpointGracePeriod, "Time for which a CiliumEndpoint may be wrong or missing before the controller acts: it deletes a wrong one; it reports a missing one, and may evict its pod after the same time again. Agents need up to 20s to create a missing one")
	fs.DurationVar(&v.EndpointTermination, "cep-termination-timeout", v.EndpointTermination, "Maximum time for which finalizers may delay the deletion of a CiliumEndpoint; after it, the controller removes them")

	fs.DurationVar(&o.FinalizerDeadline, "force-finalize-after", 10*time.Minute, "Time after the deletion of a FixedIP at which its finalizer is removed even if its addresses could not be released. The finalizer stays while the pod may use the addresses of the FixedIP's pool entries")
	fs.DurationVar(&o.ResyncPeriod, "resync-period", config.DefaultResyncPeriod, "Maximum interval at which each FixedIP, each claim without one, and all orphaned subnets are reconciled without an event")

	fs.StringSliceVar(&o.Adoption.ExcludeDBBranch, "exclude-dbbranch-prefixes", nil, "Prefixes of the label DBBranch; pods with such a label are not adopted")
	fs.BoolVar(&o.staticPodIPv6, "enable-static-pod-ipv6", true, "Adopt also the IPv6 addresses of pods; needs --enable-ipv6")

	fs.BoolVar(&o.DryRun, "dry-run", false, "Write nothing and send no events; log what would be written. Takes no part in leader election, so it can run beside an active controller")

	fs.BoolVar(&o.leaderElection, "enable-leader-election", true, "Use leader election, so that one of several replicas is active")
	fs.StringVar(&o.Namespace, "leader-election-namespace", "", "Namespace of the Leases and of the ConfigMap fixedip-cluster-pools, which the admission policy of FixedIPs reads in the namespace of the installation: with another namespace, the policy does not check addresses. Default: environment variable POD_NAMESPACE, or the namespace of the kubeconfig or the pod")
	fs.StringVar(&o.leaderElectionID, "leader-election-id", "cilium-ipam-leader", "Name of the Lease of the leader")
	fs.DurationVar(&o.leaseDuration, "leader-election-lease-duration", 15*time.Second, "Time that other replicas wait for a leader that does not renew its lease")
	fs.DurationVar(&o.renewDeadline, "leader-election-renew-deadline", 10*time.Second, "Time for which the leader tries to renew its lease before it exits")
	fs.DurationVar(&o.retryPeriod, "leader-election-retry-period", 2*time.Second, "Interval between attempts to acquire or renew the lease")

	fs.StringVar(&o.metricsBindAddress, "metrics-bind-address", ":9470", "Address for metrics; 0 disables them")
	fs.StringVar((*string)(&o.MetricsPerNode), "metrics-per-node", string(metrics.PerNodeAuto), "Serve metrics for each node: on, off, or auto, which means up to 1000 nodes. Sums over all nodes are always served")
	fs.BoolVar(&o.metricsSecure, "metrics-secure", false, "Serve metrics over HTTPS with a self-signed certificate, and only to users who may get /metrics. The API server decides that (TokenReview and SubjectAccessReview)")
	fs.StringVar(&o.healthProbeBindAddress, "health-probe-bind-address", ":9471", "Address for /healthz and /readyz; 0 disables them")
	fs.StringVar(&o.pprofBindAddress, "pprof-bind-address", "0", "Address for Go profiles at /debug/pprof/, without authentication; 0 disables them")
}

// releaseDeletions is the value of Config.ReleaseDeletions. With this value, releasing the FixedIPs of a node with 30 pods
// takes two rounds of requests. A larger value would not be faster, because the API server and etcd store the deletions one
// after another.
const releaseDeletions = 16

// config returns the complete Config. Without the settings of Cilium (o.cilium), the settings that depend on them are absent
// and not validated. An error names the flag, or the field in the file, and the value. changed reports whether a source
// other than the file has set a flag.
func (o *options) config(changed func(flag string) bool) (cfg config.Config, err error) {
	cfg = o.Config
	cfg.ReleaseDeletions = releaseDeletions
	if cfg.Namespace == "" {
		cfg.Namespace = ownNamespace(o.kubeconfig)
	}
	settings, err := o.configuration(changed)
	if err != nil {
		return cfg, err
	}
	if err := cfg.Apply(settings); err != nil {
		return cfg, err
	}
	if cfg.CiliumConfig, err = ciliumconfigmap.ParseName(o.ciliumConfig); err != nil {
		return cfg, fmt.Errorf("--cilium-config: %w", err)
	}
	if o.cilium != nil {
		cfg.Cilium = *o.cilium
	}
	cfg.Adoption.IPv4Only = cfg.Adoption.IPv4Only || !o.staticPodIPv6
	if errs := append(cfg.Validate(), o.validate(cfg.Namespace)...); len(errs) > 0 {
		return cfg, fmt.Errorf("--%w", errs[0])
	}
	return cfg, nil
}

// validate returns an error for each invalid flag of the process itself: clients, leader election and bind addresses.
// namespace is the namespace of the Leases.
func (o *options) validate(namespace string) (errs field.ErrorList) {
	if !(o.qps > 0) {
		errs = append(errs, field.Invalid(field.NewPath("kube-api-qps"), o.qps, "must be more than 0"))
	}
	if o.burst < 1 {
		errs = append(errs, field.Invalid(field.NewPath("kube-api-burst"), o.burst, "must be at least 1"))
	}
	for _, f := range []struct{ flag, name string }{
		{"leader-election-namespace", namespace},
		{"leader-election-id", o.leaderElectionID},
	} {
		for _, problem := range validation.IsDNS1123Subdomain(f.name) {
			errs = append(errs, field.Invalid(field.NewPath(f.flag), f.name, problem))
		}
	}
	for _, f := range []struct{ flag, address string }{
		{"metrics-bind-address", o.metricsBindAddress},
		{"health-probe-bind-address", o.healthProbeBindAddress},
		{"pprof-bind-address", o.pprofBindAddress},
	} {
		_, port, err := net.SplitHostPort(f.address)
		if n, invalid := strconv.ParseUint(port, 10, 16); f.address != "0" && (err != nil || invalid != nil || n == 0) {
			errs = append(errs, field.Invalid(field.NewPath(f.flag), f.address, "write host:port with a number as the port, such as :9470, or 0"))
		}
	}
	if o.leaderElection && !(o.leaseDuration > o.renewDeadline && o.renewDeadline > o.retryPeriod && o.retryPeriod > 0) {
		errs = append(errs, field.Invalid(field.NewPath("leader-election-lease-duration"), o.leaseDuration.String(),
			fmt.Sprintf("must be longer than leader-election-renew-deadline %v, which must be longer than leader-election-retry-period %v; all must be more than 0", o.renewDeadline, o.retryPeriod)))
	}
	return errs
}

func (o *options) restConfig() (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig %q: %w", o.kubeconfig, err)
	}
	cfg.QPS, cfg.Burst = o.qps, o.burst
	return rest.AddUserAgent(cfg, "fixedip-controller"), nil
}
