// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"fixedip.io/fixedip/ipam/controller/config"
	"fixedip.io/fixedip/ipam/controller/conformance"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/nodepool"
	"fixedip.io/fixedip/ipam/core/subnetplan"
)

// options contains the values of the flags.
type options struct {
	configFile string
	kubeconfig string
	qps        float32
	burst      int
	dryRun     bool

	subnetSource, subnetPolicy   string
	subnetHold                   time.Duration
	ipv4CIDRs, ipv6CIDRs         []string
	ipv4MaskSizes, ipv6MaskSizes []int
	ipv6                         bool
	watermark                    nodepool.Watermark
	coolDown                     time.Duration
	failover                     string
	strictNodes                  string
	writesPerMinute              int
	stripManagedFields           bool
	workloadKinds                []string
	verify                       conformance.Config
	finalizerDeadline            time.Duration
	sweepInterval                time.Duration

	labelSelector   string
	excludeDBBranch []string
	staticPodIPv6   bool
	schedulers      []string

	leaderElection                            bool
	leaderElectionNamespace, leaderElectionID string
	leaseDuration, renewDeadline, retryPeriod time.Duration

	metricsBindAddress, healthProbeBindAddress, pprofBindAddress string
}

func defaults() *options {
	return &options{
		// Releasing a thousand addresses at once takes three requests each. The API server has its own limits.
		qps:                    500,
		burst:                  1000,
		subnetSource:           string(config.ClusterPool),
		subnetPolicy:           string(subnetplan.Inherit),
		subnetHold:             time.Minute,
		ipv4MaskSizes:          []int{24},
		ipv6MaskSizes:          []int{120},
		ipv6:                   true,
		staticPodIPv6:          true,
		schedulers:             []string{"fixedip-scheduler"},
		watermark:              nodepool.Watermark{Free: 8, Excess: 8},
		coolDown:               time.Minute,
		failover:               "Wait",
		strictNodes:            "fixedip.io/strict=true",
		writesPerMinute:        60,
		stripManagedFields:     true,
		verify:                 conformance.DefaultConfig(),
		finalizerDeadline:      10 * time.Minute,
		sweepInterval:          config.DefaultSweepInterval,
		leaderElection:         true,
		leaderElectionID:       "cilium-ipam-leader",
		leaseDuration:          15 * time.Second,
		renewDeadline:          10 * time.Second,
		retryPeriod:            2 * time.Second,
		metricsBindAddress:     ":9470",
		healthProbeBindAddress: ":9471",
		pprofBindAddress:       "0",
	}
}

func (o *options) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.configFile, "config", o.configFile, "YAML file of kind "+configKind+" whose other keys are names of these flags; flags on the command line take precedence")
	fs.StringVar(&o.kubeconfig, "kubeconfig", o.kubeconfig, "Kubeconfig file; if empty, the service account of the pod is used. Default: environment variable KUBECONFIG")
	fs.Float32Var(&o.qps, "kube-api-qps", o.qps, "Requests per second to the API server")
	fs.IntVar(&o.burst, "kube-api-burst", o.burst, "Burst of requests to the API server")

	fs.StringSliceVar(&o.ipv4CIDRs, "cluster-pool-ipv4-cidr", nil, "IPv4 CIDRs from which nodes get their subnets")
	fs.IntSliceVar(&o.ipv4MaskSizes, "cluster-pool-ipv4-mask-size", o.ipv4MaskSizes, "Prefix length of IPv4 subnets of nodes: one for all CIDRs, or one for each")
	fs.StringSliceVar(&o.ipv6CIDRs, "cluster-pool-ipv6-cidr", nil, "IPv6 CIDRs from which nodes get their subnets")
	fs.IntSliceVar(&o.ipv6MaskSizes, "cluster-pool-ipv6-mask-size", o.ipv6MaskSizes, "Prefix length of IPv6 subnets of nodes: one for all CIDRs, or one for each")
	fs.BoolVar(&o.ipv6, "enable-ipv6", o.ipv6, "Give nodes IPv6 subnets from --cluster-pool-ipv6-cidr; false disables the family")
	fs.StringVar(&o.subnetSource, "subnet-source", o.subnetSource, "Source of the subnets of nodes: ClusterPool, or Node for Node.spec.podCIDRs")
	fs.StringVar(&o.subnetPolicy, "orphaned-subnet-policy", o.subnetPolicy, "What happens to a subnet with FixedIPs whose node is gone: Inherit (another node takes it over), Hold (it waits for the node) or Free (the FixedIPs are deleted)")
	fs.DurationVar(&o.subnetHold, "orphaned-subnet-grace-period", o.subnetHold, "How long an orphaned subnet waits for its node before --orphaned-subnet-policy applies")
	fs.IntVar(&o.watermark.Free, "min-free-ips", o.watermark.Free, "Minimum of free dynamic addresses in the pool of each node, per family")
	fs.IntVar(&o.watermark.Max, "max-dynamic-ips", o.watermark.Max, "Maximum of dynamic addresses, free or in use, in the pool of a node, per family; the rest of the subnet is for fixed addresses. 0: as many as the node takes pods, at most half of its subnet")
	fs.IntVar(&o.watermark.Excess, "max-surplus-ips", o.watermark.Excess, "How many free dynamic addresses beyond min-free-ips a pool may have before some are removed")
	fs.StringVar(&o.strictNodes, "strict-nodes", o.strictNodes, "Label selector of strict nodes, on which every pod gets an owned entry; empty selects none. Has to equal strictNodes of the scheduler")
	fs.IntVar(&o.writesPerMinute, "node-writes-per-minute", o.writesPerMinute, "Maximum of writes to one CiliumNode per minute; half of them may come at once")
	fs.BoolVar(&o.stripManagedFields, "strip-managed-fields", o.stripManagedFields, "Remove metadata.managedFields from CiliumNodes, which is half of their size")
	fs.DurationVar(&o.coolDown, "address-cooldown", o.coolDown, "How long a released address is not offered to other pods")
	fs.StringVar(&o.failover, "failover", o.failover, "Default policy for pods whose node cannot take them: Wait, Migrate or Reassign. Has to equal failover of the scheduler")
	addVerifyFlags(fs, &o.verify)
	fs.DurationVar(&o.finalizerDeadline, "force-finalize-after", o.finalizerDeadline, "How long after its deletion the finalizer of a FixedIP is removed even if its addresses could not be released")
	fs.DurationVar(&o.sweepInterval, "resync-period", o.sweepInterval, "How often each FixedIP is reconciled without an event")

	fs.StringVar(&o.labelSelector, "label-selector", o.labelSelector, "Adopt the current IP of matching pods placed by other schedulers (StatefulSet pods and bare pods): a LabelSelector in JSON, or app=mysql,env!=test. Empty selects none")
	fs.StringSliceVar(&o.excludeDBBranch, "exclude-dbbranch-prefixes", nil, "Prefixes of the label DBBranch; pods with such a label are excluded from --label-selector")
	fs.BoolVar(&o.staticPodIPv6, "enable-static-pod-ipv6", o.staticPodIPv6, "Adopt the IPv6 addresses of pods that --label-selector matches too")

	fs.StringSliceVar(&o.schedulers, "scheduler-names", o.schedulers, "Names of the profiles of fixedip-scheduler (schedulerName of pods)")

	fs.BoolVar(&o.dryRun, "dry-run", o.dryRun, "Write nothing and send no events; log what would be written. Takes no part in leader election, so it can run beside an active controller")
	fs.StringArrayVar(&o.workloadKinds, "workload-kind", nil, "Further kind of workload whose pods may have fixed addresses, as Kind.group=PodName or Kind.group=Slot, such as Deployment.apps=Slot; may be repeated. Has to equal workloads of the scheduler")

	fs.BoolVar(&o.leaderElection, "enable-leader-election", o.leaderElection, "Use leader election, so that one of several replicas is active")
	fs.StringVar(&o.leaderElectionNamespace, "leader-election-namespace", o.leaderElectionNamespace, "Namespace of the Leases. Default: environment variable POD_NAMESPACE, or the namespace of the kubeconfig or the pod")
	fs.StringVar(&o.leaderElectionID, "leader-election-id", o.leaderElectionID, "Name of the Lease of the leader")
	fs.DurationVar(&o.leaseDuration, "leader-election-lease-duration", o.leaseDuration, "How long other replicas wait for a leader that does not renew its lease")
	fs.DurationVar(&o.renewDeadline, "leader-election-renew-deadline", o.renewDeadline, "How long the leader tries to renew its lease before it exits")
	fs.DurationVar(&o.retryPeriod, "leader-election-retry-period", o.retryPeriod, "Interval between attempts to acquire or renew the lease")

	fs.StringVar(&o.metricsBindAddress, "metrics-bind-address", o.metricsBindAddress, "Address for metrics; 0 disables them")
	fs.StringVar(&o.healthProbeBindAddress, "health-probe-bind-address", o.healthProbeBindAddress, "Address for /healthz and /readyz; 0 disables them")
	fs.StringVar(&o.pprofBindAddress, "pprof-bind-address", o.pprofBindAddress, "Address for Go profiles at /debug/pprof/, without authentication; 0 disables them")
}

// config converts the flags to a Config. An error names the flag and the value.
func (o *options) config() (config.Config, error) {
	if o.leaderElectionNamespace == "" {
		o.leaderElectionNamespace = ownNamespace(o.kubeconfig)
	}
	cfg := config.Config{
		SubnetSource:       config.SubnetSource(o.subnetSource),
		SubnetPolicy:       subnetplan.Policy(o.subnetPolicy),
		SubnetHold:         o.subnetHold,
		Watermark:          o.watermark,
		StrictNodes:        labels.Nothing(),
		WritesPerMinute:    o.writesPerMinute,
		StripManagedFields: o.stripManagedFields,
		CoolDown:           o.coolDown,
		FinalizerDeadline:  o.finalizerDeadline,
		SweepInterval:      o.sweepInterval,
		Namespace:          o.leaderElectionNamespace,
		DryRun:             o.dryRun,
		Verify:             o.verify,
	}
	if o.strictNodes != "" {
		selector, err := identity.ParseLabels(o.strictNodes)
		if err != nil {
			return cfg, fmt.Errorf("--strict-nodes %q: %w", o.strictNodes, err)
		}
		cfg.StrictNodes = selector
	}
	var err error
	if cfg.Failover, err = identity.ParseFailover(o.failover); err != nil {
		return cfg, fmt.Errorf("--failover: %w", err)
	}
	for _, family := range []struct {
		prefix    string
		family    address.Family
		cidrs     []string
		maskSizes []int
	}{
		{"cluster-pool-ipv4-", address.IPv4, o.ipv4CIDRs, o.ipv4MaskSizes},
		{"cluster-pool-ipv6-", address.IPv6, o.ipv6CIDRs, o.ipv6MaskSizes},
	} {
		if family.family == address.IPv6 && !o.ipv6 {
			continue
		}
		if n := len(family.maskSizes); len(family.cidrs) > 0 && n != 1 && n != len(family.cidrs) {
			return cfg, fmt.Errorf("--%smask-size %v: give one for all of --%scidr %v, or one for each", family.prefix, family.maskSizes, family.prefix, family.cidrs)
		}
		for i, s := range family.cidrs {
			cidr, err := parseCIDR(s, family.family)
			if err != nil {
				return cfg, fmt.Errorf("--%scidr: %w", family.prefix, err)
			}
			cfg.ClusterPools = append(cfg.ClusterPools, address.ClusterPool{CIDR: cidr, MaskSize: family.maskSizes[min(i, len(family.maskSizes)-1)]})
		}
	}
	selector, err := identity.ParseSelector(o.labelSelector)
	if err != nil {
		return cfg, fmt.Errorf("--label-selector: Invalid value: %q: %w", o.labelSelector, err)
	}
	cfg.Adoption = identity.Adoption{Selector: selector, ExcludeDBBranch: o.excludeDBBranch, IPv4Only: !o.ipv6 || !o.staticPodIPv6, Schedulers: o.schedulers}
	for _, s := range o.workloadKinds {
		kind, err := identity.ParseKind(s)
		if err != nil {
			return cfg, fmt.Errorf("--workload-kind: %w", err)
		}
		cfg.Workloads = append(cfg.Workloads, kind)
	}
	if errs := cfg.Validate(); len(errs) > 0 {
		return cfg, fmt.Errorf("--%w", errs[0])
	}
	if err := o.validateProcess(); err != nil {
		return cfg, err
	}
	if o.leaderElection && !(o.leaseDuration > o.renewDeadline && o.renewDeadline > o.retryPeriod && o.retryPeriod > 0) {
		return cfg, fmt.Errorf("--leader-election-lease-duration %v must be longer than --leader-election-renew-deadline %v, which must be longer than --leader-election-retry-period %v", o.leaseDuration, o.renewDeadline, o.retryPeriod)
	}
	return cfg, nil
}

// validateProcess validates the flags that concern the process and not the controllers.
func (o *options) validateProcess() error {
	switch {
	case !(o.qps > 0):
		return fmt.Errorf("--kube-api-qps: Invalid value: %v: must be more than 0", o.qps)
	case o.burst < 1:
		return fmt.Errorf("--kube-api-burst: Invalid value: %d: must be at least 1", o.burst)
	}
	names := []struct{ flag, value string }{
		{"leader-election-namespace", o.leaderElectionNamespace},
		{"leader-election-id", o.leaderElectionID},
	}
	for _, n := range names {
		if problems := validation.IsDNS1123Subdomain(n.value); len(problems) > 0 {
			return fmt.Errorf("--%s: Invalid value: %q: %s", n.flag, n.value, problems[0])
		}
	}
	for _, a := range []struct{ flag, value string }{
		{"metrics-bind-address", o.metricsBindAddress},
		{"health-probe-bind-address", o.healthProbeBindAddress},
		{"pprof-bind-address", o.pprofBindAddress},
	} {
		if _, port, err := net.SplitHostPort(a.value); a.value != "0" && (err != nil || !isPort(port)) {
			return fmt.Errorf("--%s: Invalid value: %q: write host:port, such as :9470, or 0", a.flag, a.value)
		}
	}
	return nil
}

func isPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0
}

func parseCIDR(s string, family address.Family) (netip.Prefix, error) {
	cidr, err := address.ParseSubnet(s)
	if err != nil {
		return cidr, err
	}
	if f := address.Of(cidr.Addr()); f != family {
		return cidr, fmt.Errorf("%q is an %s CIDR", s, f)
	}
	return cidr, nil
}

func (o *options) restConfig() (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig %q: %w", o.kubeconfig, err)
	}
	cfg.QPS, cfg.Burst = o.qps, o.burst
	return rest.AddUserAgent(cfg, "fixedip-controller"), nil
}
