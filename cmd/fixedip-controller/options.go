// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"fixedip.io/fixedip/ipam/controller/config"
	"fixedip.io/fixedip/ipam/controller/conformance"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/subnetplan"
)

// options contains the values of the flags. The method config computes the fields of Config that do not have the value of a
// flag.
type options struct {
	config.Config
	configFile string
	kubeconfig string
	qps        float32
	burst      int

	ipv4CIDRs, ipv6CIDRs         []string
	ipv4MaskSizes, ipv6MaskSizes []int
	ipv6, staticPodIPv6          bool
	strictNodes, labelSelector   string
	workloadKinds                []string

	leaderElection                            bool
	leaderElectionID                          string
	leaseDuration, renewDeadline, retryPeriod time.Duration

	metricsBindAddress, healthProbeBindAddress, pprofBindAddress string
}

// addFlags adds the flags, and sets the options to their defaults.
func (o *options) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.configFile, "config", "", "YAML file of kind "+configKind+" whose other keys are names of these flags; flags on the command line take precedence")
	fs.StringVar(&o.kubeconfig, "kubeconfig", "", "Kubeconfig file; if empty, the service account of the pod is used. Default: environment variable KUBECONFIG")
	// Releasing a thousand addresses at once takes three requests for each address. The API server has its own limits.
	fs.Float32Var(&o.qps, "kube-api-qps", 500, "Maximum number of requests per second to the API server, on average, of each client and for each kind of object; the controller as a whole may send more")
	fs.IntVar(&o.burst, "kube-api-burst", 1000, "Maximum number of requests to the API server in a burst, during which the rate may exceed --kube-api-qps")

	fs.StringSliceVar(&o.ipv4CIDRs, "cluster-pool-ipv4-cidr", nil, "IPv4 CIDRs from which nodes get their subnets")
	fs.IntSliceVar(&o.ipv4MaskSizes, "cluster-pool-ipv4-mask-size", []int{24}, "Prefix length of IPv4 subnets of nodes: one for all CIDRs, or one for each")
	fs.StringSliceVar(&o.ipv6CIDRs, "cluster-pool-ipv6-cidr", nil, "IPv6 CIDRs from which nodes get their subnets")
	fs.IntSliceVar(&o.ipv6MaskSizes, "cluster-pool-ipv6-mask-size", []int{120}, "Prefix length of IPv6 subnets of nodes: one for all CIDRs, or one for each")
	fs.BoolVar(&o.ipv6, "enable-ipv6", true, "Give nodes IPv6 subnets from --cluster-pool-ipv6-cidr, and adopt IPv6 addresses of pods (--label-selector). If false, nodes keep the IPv6 subnets that they have")
	fs.StringVar((*string)(&o.SubnetSource), "subnet-source", string(config.ClusterPool), "Source of the subnets of nodes: ClusterPool, or Node for Node.spec.podCIDRs")
	fs.StringVar((*string)(&o.SubnetPolicy), "orphaned-subnet-policy", string(subnetplan.Inherit), "Policy for a subnet with FixedIPs whose node is gone: Inherit (another node takes over the subnet), Hold (the subnet waits for its node) or Free (the FixedIPs are deleted). With --subnet-source=Node, Inherit acts like Hold")
	fs.DurationVar(&o.OrphanGracePeriod, "orphaned-subnet-grace-period", time.Minute, "Time that an orphaned subnet waits for its node before --orphaned-subnet-policy applies, and before a subnet without FixedIPs is released. If the failover policy of an IP in the subnet is Migrate, a node that has a subnet may inherit it after 10s at most")
	fs.StringSliceVar(&o.ProtectNodesFrom, "protect-nodes-from", nil, "Autoscalers that must not remove nodes whose subnets have fixed addresses: cluster-autoscaler, karpenter. The controller annotates these Nodes, and needs manifests/controller-scale-down-rbac.yaml for that")
	fs.IntVar(&o.Watermark.Free, "min-free-ips", 8, "Minimum number of free dynamic addresses in the pool of each node, per family. Strict nodes have none")
	fs.IntVar(&o.Watermark.Max, "max-dynamic-ips", 0, "Maximum number of dynamic addresses, free or in use, in the pool of a node, per family; the rest of the subnet is for fixed addresses. 0: the number of pods that the node can run, but at most half of its subnet")
	fs.IntVar(&o.Watermark.Excess, "max-surplus-ips", 8, "Maximum number of free dynamic addresses beyond --min-free-ips in the pool of a node, per family. If more are free, addresses are removed until half of this number remains")
	fs.StringVar(&o.strictNodes, "strict-nodes", "fixedip.io/strict=true", "Label selector of strict nodes, on which every pod gets an owned entry; empty selects none. Has to equal strictNodes of the scheduler")
	fs.IntVar(&o.WritesPerMinute, "node-writes-per-minute", 60, "Maximum number of writes to one CiliumNode per minute; half of them may come at once. Urgent writes count but do not wait")
	fs.BoolVar(&o.StripManagedFields, "strip-managed-fields", true, "Remove metadata.managedFields of CiliumNodes, which is about half of their size")
	fs.DurationVar(&o.Cooldown, "address-cooldown", time.Minute, "Minimum time for which a released or withdrawn address is offered to no other pod. The cooldown then ends when the agent of the node has confirmed that no pod uses the address; if the agent still reports the address as used, the cooldown starts again")
	fs.StringVar((*string)(&o.Failover), "failover", "Wait", "Default policy for pods whose node cannot take them: Wait, Migrate or Reassign. Has to equal failover of the scheduler")

	o.Verify = conformance.DefaultConfig()
	v := &o.Verify
	fs.StringVar(&v.OnMismatch, "mismatch-policy", v.OnMismatch, "Policy for pods that run with another address than their fixed address, or have no CiliumEndpoint: Restart (evict the pod) or Report. The annotation "+identity.AnnotationOnMismatch+" of a workload or its pods takes precedence")
	fs.DurationVar(&v.RestartAfter, "mismatch-grace-period", v.RestartAfter, "Minimum time for which a pod runs with a wrong address before it is evicted; should be longer than agents take to see a pool entry. For a missing CiliumEndpoint, --cep-grace-period applies")
	fs.IntVar(&v.Restarts, "max-concurrent-restarts", v.Restarts, "Maximum number of pods that restart at the same time because of a mismatch")
	fs.BoolVar(&v.Endpoints, "enable-cep-keeper", v.Endpoints, "Repair CiliumEndpoints, and evict pods with a fixed address whose CiliumEndpoint stays missing. Has no effect if Cilium creates no CiliumEndpoints (disable-endpoint-crd)")
	fs.DurationVar(&v.EndpointGracePeriod, "cep-grace-period", v.EndpointGracePeriod, "Time for which a CiliumEndpoint may be wrong or missing before the controller acts: it deletes a wrong one; it reports a missing one, and may evict its pod after the same time again. Agents need up to 20s to create a missing one")
	fs.DurationVar(&v.EndpointTermination, "cep-termination-timeout", v.EndpointTermination, "Maximum time for which finalizers may delay the deletion of a CiliumEndpoint; after it, the controller removes them")

	fs.DurationVar(&o.FinalizerDeadline, "force-finalize-after", 10*time.Minute, "Time after the deletion of a FixedIP at which its finalizer is removed even if its addresses could not be released. It stays while its pod may use the addresses of its pool entries")
	fs.DurationVar(&o.ResyncPeriod, "resync-period", config.DefaultResyncPeriod, "Maximum interval at which each FixedIP, each claim without one, and all orphaned subnets are reconciled without an event")

	fs.StringVar(&o.labelSelector, "label-selector", "", "Adopt the current IPs of matching pods placed by other schedulers (pods of StatefulSets and of other kinds with identity PodName, and bare pods): a LabelSelector in JSON, or app=mysql,env!=test. Empty selects none")
	fs.StringSliceVar(&o.Adoption.ExcludeDBBranch, "exclude-dbbranch-prefixes", nil, "Prefixes of the label DBBranch; pods with such a label are not adopted")
	fs.BoolVar(&o.staticPodIPv6, "enable-static-pod-ipv6", true, "Adopt also the IPv6 addresses of pods; needs --enable-ipv6")

	fs.StringSliceVar(&o.Adoption.Schedulers, "scheduler-names", []string{"fixedip-scheduler"}, "Names of the profiles of fixedip-scheduler (schedulerName of pods). Have to equal those in the configuration of the scheduler")

	fs.BoolVar(&o.DryRun, "dry-run", false, "Write nothing and send no events; log what would be written. Takes no part in leader election, so it can run beside an active controller")
	fs.StringArrayVar(&o.workloadKinds, "workload-kind", nil, "Further kind of workload whose pods may have fixed addresses, as Kind.group=PodName or Kind.group=Slot, such as Deployment.apps=Slot. Only pods with the annotation "+identity.AnnotationEnabled+": \"true\" have fixed addresses, unless :ByDefault follows. May be repeated. Has to equal workloads of the scheduler")

	fs.BoolVar(&o.leaderElection, "enable-leader-election", true, "Use leader election, so that one of several replicas is active")
	fs.StringVar(&o.Namespace, "leader-election-namespace", "", "Namespace of the Leases. Default: environment variable POD_NAMESPACE, or the namespace of the kubeconfig or the pod")
	fs.StringVar(&o.leaderElectionID, "leader-election-id", "cilium-ipam-leader", "Name of the Lease of the leader")
	fs.DurationVar(&o.leaseDuration, "leader-election-lease-duration", 15*time.Second, "Time that other replicas wait for a leader that does not renew its lease")
	fs.DurationVar(&o.renewDeadline, "leader-election-renew-deadline", 10*time.Second, "Time for which the leader tries to renew its lease before it exits")
	fs.DurationVar(&o.retryPeriod, "leader-election-retry-period", 2*time.Second, "Interval between attempts to acquire or renew the lease")

	fs.StringVar(&o.metricsBindAddress, "metrics-bind-address", ":9470", "Address for metrics; 0 disables them")
	fs.StringVar(&o.healthProbeBindAddress, "health-probe-bind-address", ":9471", "Address for /healthz and /readyz; 0 disables them")
	fs.StringVar(&o.pprofBindAddress, "pprof-bind-address", "0", "Address for Go profiles at /debug/pprof/, without authentication; 0 disables them")
}

// config returns the complete Config. An error names the flag and the value.
func (o *options) config() (cfg config.Config, err error) {
	cfg = o.Config
	if cfg.Namespace == "" {
		cfg.Namespace = ownNamespace(o.kubeconfig)
	}
	cfg.StrictNodes = labels.Nothing()
	if o.strictNodes != "" {
		if cfg.StrictNodes, err = identity.ParseLabels(o.strictNodes); err != nil {
			return cfg, fmt.Errorf("--strict-nodes %q: %w", o.strictNodes, err)
		}
	}
	if _, err := identity.ParseFailover(string(o.Failover)); err != nil {
		return cfg, fmt.Errorf("--failover: %w", err)
	}
	if cfg.ClusterPools, err = clusterPools(address.IPv4, o.ipv4CIDRs, o.ipv4MaskSizes); err != nil {
		return cfg, err
	}
	if o.ipv6 {
		pools, err := clusterPools(address.IPv6, o.ipv6CIDRs, o.ipv6MaskSizes)
		if err != nil {
			return cfg, err
		}
		cfg.ClusterPools = append(cfg.ClusterPools, pools...)
	}
	if cfg.Adoption.Selector, err = identity.ParseSelector(o.labelSelector); err != nil {
		return cfg, fmt.Errorf("--label-selector: Invalid value: %q: %w", o.labelSelector, err)
	}
	cfg.Adoption.IPv4Only = !o.ipv6 || !o.staticPodIPv6
	for _, s := range o.workloadKinds {
		kind, err := identity.ParseKind(s)
		if err != nil {
			return cfg, fmt.Errorf("--workload-kind: %w", err)
		}
		cfg.Workloads = append(cfg.Workloads, kind)
	}
	if errs := append(cfg.Validate(), o.validate(cfg.Namespace)...); len(errs) > 0 {
		return cfg, fmt.Errorf("--%w", errs[0])
	}
	return cfg, nil
}

// clusterPools returns the cluster pools of one family.
func clusterPools(family address.Family, cidrs []string, maskSizes []int) (pools []address.ClusterPool, err error) {
	flag := "--cluster-pool-" + strings.ToLower(family.String())
	if n := len(maskSizes); len(cidrs) > 0 && n != 1 && n != len(cidrs) {
		return nil, fmt.Errorf("%s-mask-size %v: give one for all of %s-cidr %v, or one for each", flag, maskSizes, flag, cidrs)
	}
	for i, s := range cidrs {
		p := address.ClusterPool{MaskSize: maskSizes[min(i, len(maskSizes)-1)]}
		if p.CIDR, err = address.ParseSubnet(s); err != nil {
			return nil, fmt.Errorf("%s-cidr: %w", flag, err)
		}
		if p.Family() != family {
			return nil, fmt.Errorf("%s-cidr: %q is an %s CIDR; write it in --cluster-pool-%s-cidr", flag, s, p.Family(), strings.ToLower(p.Family().String()))
		}
		pools = append(pools, p)
	}
	return pools, nil
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
