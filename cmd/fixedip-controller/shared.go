// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/configuration"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/subnetplan"
)

// sharedValues contains the values of the flags that set fields of the configuration.
type sharedValues struct {
	ipv4CIDRs, ipv6CIDRs         []string
	ipv4MaskSizes, ipv6MaskSizes []int
	ipv6                         bool
	subnetSource, orphanedPolicy string
	orphanedGracePeriod          time.Duration
	protectNodesFrom             []string
	minFree, maxDynamic          int
	strictNodes                  string
	failover                     string
	migration                    bool
	mismatchPolicy               string
	labelSelector                string
	schedulerNames               []string
	workloadKinds                []string
}

// addFlags adds the flags. Their defaults are only for the usage text: a flag that is not set does not change the
// configuration. They repeat the defaults of Configuration.Complete, with two exceptions. Without enable-ipv6, Complete sets
// the families of the cluster pools, or IPv4 only if there are no cluster pools. Without allow-address-migration,
// Configuration.AdaptTo allows migration if Cilium uses tunnels.
func (v *sharedValues) addFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&v.ipv4CIDRs, "cluster-pool-ipv4-cidr", nil, "IPv4 CIDRs from which nodes get their subnets")
	fs.IntSliceVar(&v.ipv4MaskSizes, "cluster-pool-ipv4-mask-size", []int{24}, "Prefix length of IPv4 subnets of nodes: one for all CIDRs, or one for each")
	fs.StringSliceVar(&v.ipv6CIDRs, "cluster-pool-ipv6-cidr", nil, "IPv6 CIDRs from which nodes get their subnets")
	fs.IntSliceVar(&v.ipv6MaskSizes, "cluster-pool-ipv6-mask-size", []int{120}, "Prefix length of IPv6 subnets of nodes: one for all CIDRs, or one for each")
	fs.BoolVar(&v.ipv6, enableIPv6, true, "Give nodes IPv6 subnets from --cluster-pool-ipv6-cidr, and pods fixed IPv6 addresses. If false, nodes keep the IPv6 subnets that they have. With --subnet-source=Node, only IPv4 is used unless this flag or ipFamilies of the configuration is set")
	fs.StringVar(&v.subnetSource, "subnet-source", string(configuration.FromClusterPools), "Source of the subnets of nodes: ClusterPool, or Node for Node.spec.podCIDRs")
	fs.StringVar(&v.orphanedPolicy, "orphaned-subnet-policy", string(subnetplan.Inherit), "Policy for a subnet with FixedIPs whose node is gone: Inherit (another node takes over the subnet), Hold (no other node takes it over) or Free (the FixedIPs are deleted). With Hold too, a node that is named as successor takes the subnet over, and another node may if the failover policy of an IP in it is Migrate. With --subnet-source=Node, Inherit acts like Hold")
	fs.DurationVar(&v.orphanedGracePeriod, "orphaned-subnet-grace-period", configuration.DefaultOrphanedGracePeriod, "Time that an orphaned subnet waits for its node before --orphaned-subnet-policy applies, and before a subnet without FixedIPs is released. If the failover policy of an IP in the subnet is Migrate, a node that already has a subnet waits at most 10s before it may inherit the orphaned subnet")
	fs.StringSliceVar(&v.protectNodesFrom, "protect-nodes-from", nil, "Autoscalers that must not remove nodes whose subnets have fixed addresses: cluster-autoscaler, karpenter. The controller annotates these Nodes, and needs manifests/controller-scale-down-rbac.yaml for that")
	fs.IntVar(&v.minFree, "min-free-ips", configuration.DefaultMinFree, "Minimum number of free dynamic addresses in the pool of each node, per family. Strict nodes have none")
	fs.IntVar(&v.maxDynamic, "max-dynamic-ips", 0, "Maximum number of dynamic addresses, free or in use, in the pool of a node, per family; the rest of the subnet is for fixed addresses. 0: the number of pods that the node can run plus 3 for addresses of the node itself, but at most half of its subnet")
	fs.StringVar(&v.strictNodes, "strict-nodes", configuration.DefaultStrictNodes, "Label selector of strict nodes, on which every pod gets an owned entry; empty selects none")
	fs.StringVar(&v.failover, "failover", string(v1alpha1.Wait), "Default policy for pods whose node cannot take them: Wait, Migrate or Reassign")
	fs.BoolVar(&v.migration, "allow-address-migration", false, "Allow addresses to move to nodes whose subnets do not contain them, which needs routing of single addresses. If the flag is not set, and allowAddressMigration of the configuration is not either: true if routing-mode of Cilium is tunnel, otherwise false")
	fs.StringVar(&v.mismatchPolicy, "mismatch-policy", string(identity.Restart), "Policy for pods that run with another address than their fixed address, or have no CiliumEndpoint: Restart (evict the pod) or Report. The annotation "+identity.AnnotationOnMismatch+" of a workload or its pods takes precedence. If --label-selector or adoption.podSelector selects pods, the default is Report")
	fs.StringVar(&v.labelSelector, "label-selector", "", "Adopt the current IPs of matching pods placed by other schedulers (pods of StatefulSets and of other kinds with identity PodName, and bare pods): a LabelSelector in JSON, or app=mysql,env!=test. Empty selects none")
	fs.StringSliceVar(&v.schedulerNames, "scheduler-names", []string{configuration.DefaultSchedulerName}, "Names of the profiles of fixedip-scheduler (schedulerName of pods)")
	fs.StringArrayVar(&v.workloadKinds, "workload-kind", nil, "Further kind of workload whose pods may have fixed addresses, as Kind.group=PodName or Kind.group=Slot, such as Deployment.apps=Slot. Only pods with the annotation "+identity.AnnotationEnabled+": \"true\" have fixed addresses, unless :ByDefault follows. May be repeated")
}

// clusterPools is the path of the field with the cluster pools, which four flags set.
const clusterPools = "subnets.clusterPools"

// enableIPv6 is the flag that sets the field ipFamilies.
const enableIPv6 = "enable-ipv6"

// sharedFlags are the flags that set fields of the configuration. They are applied in this order, because the effect of
// some depends on fields that earlier flags set.
var sharedFlags = []struct {
	flag string
	// field is the path of the field.
	field string
	set   func(c *configuration.Configuration, v sharedValues) error
}{
	{"cluster-pool-ipv4-cidr", clusterPools, func(c *configuration.Configuration, v sharedValues) error {
		return setPools(c, address.IPv4, v.ipv4CIDRs, v.ipv4MaskSizes)
	}},
	{"cluster-pool-ipv4-mask-size", clusterPools, func(c *configuration.Configuration, v sharedValues) error {
		return setPools(c, address.IPv4, v.ipv4CIDRs, v.ipv4MaskSizes)
	}},
	{"cluster-pool-ipv6-cidr", clusterPools, func(c *configuration.Configuration, v sharedValues) error {
		return setPools(c, address.IPv6, v.ipv6CIDRs, v.ipv6MaskSizes)
	}},
	{"cluster-pool-ipv6-mask-size", clusterPools, func(c *configuration.Configuration, v sharedValues) error {
		return setPools(c, address.IPv6, v.ipv6CIDRs, v.ipv6MaskSizes)
	}},
	{"subnet-source", "subnets.source", func(c *configuration.Configuration, v sharedValues) error {
		c.Subnets.Source = configuration.SubnetSource(v.subnetSource)
		return nil
	}},
	{enableIPv6, "ipFamilies", func(c *configuration.Configuration, v sharedValues) error {
		switch {
		case !v.ipv6:
			c.IPFamilies = []string{address.IPv4.String()}
		case c.Subnets.Source == configuration.FromNode:
			c.IPFamilies = []string{address.IPv4.String(), address.IPv6.String()}
		default:
			// Complete then sets the families of the cluster pools.
			c.IPFamilies = nil
		}
		return nil
	}},
	{"orphaned-subnet-policy", "subnets.orphanedPolicy", func(c *configuration.Configuration, v sharedValues) error {
		c.Subnets.OrphanedPolicy = subnetplan.OrphanPolicy(v.orphanedPolicy)
		return nil
	}},
	{"orphaned-subnet-grace-period", "subnets.orphanedGracePeriod", func(c *configuration.Configuration, v sharedValues) error {
		c.Subnets.OrphanedGracePeriod = &metav1.Duration{Duration: v.orphanedGracePeriod}
		return nil
	}},
	{"protect-nodes-from", "protectNodesFrom", func(c *configuration.Configuration, v sharedValues) error {
		c.ProtectNodesFrom = v.protectNodesFrom
		return nil
	}},
	{"min-free-ips", "pools.minFree", func(c *configuration.Configuration, v sharedValues) error {
		c.Pools.MinFree = &v.minFree
		return nil
	}},
	{"max-dynamic-ips", "pools.maxDynamic", func(c *configuration.Configuration, v sharedValues) error {
		c.Pools.MaxDynamic = &v.maxDynamic
		return nil
	}},
	{"strict-nodes", "strictNodes", func(c *configuration.Configuration, v sharedValues) error {
		c.StrictNodes = &v.strictNodes
		return nil
	}},
	{"failover", "failover", func(c *configuration.Configuration, v sharedValues) error {
		c.Failover = v1alpha1.Failover(v.failover)
		return nil
	}},
	{"allow-address-migration", "allowAddressMigration", func(c *configuration.Configuration, v sharedValues) error {
		c.AllowAddressMigration = &v.migration
		return nil
	}},
	{"mismatch-policy", "mismatchPolicy", func(c *configuration.Configuration, v sharedValues) error {
		c.MismatchPolicy = identity.OnMismatch(v.mismatchPolicy)
		return nil
	}},
	{"label-selector", "adoption.podSelector", func(c *configuration.Configuration, v sharedValues) (err error) {
		c.Adoption.PodSelector, err = identity.ParseSelector(v.labelSelector)
		return err
	}},
	{"scheduler-names", "schedulerNames", func(c *configuration.Configuration, v sharedValues) error {
		c.SchedulerNames = v.schedulerNames
		return nil
	}},
	{"workload-kind", "workloads", func(c *configuration.Configuration, v sharedValues) error {
		c.Workloads = nil
		for _, text := range v.workloadKinds {
			kind, err := identity.ParseKind(text)
			if err != nil {
				return err
			}
			c.Workloads = append(c.Workloads, kind)
		}
		return nil
	}},
}

// setPools sets the cluster pools of one family to the CIDRs and mask sizes of the flags. If cidrs is empty, the CIDRs of
// the file stay and get the mask sizes of the flags. maskSizes has to contain one size for all CIDRs, or one for each.
func setPools(c *configuration.Configuration, family address.Family, cidrs []string, maskSizes []int) error {
	isFamily := func(p configuration.ClusterPool) bool { return familyOf(p) == family }
	if len(cidrs) == 0 {
		for _, p := range c.Subnets.ClusterPools {
			if isFamily(p) {
				cidrs = append(cidrs, p.CIDR)
			}
		}
	}
	if n := len(maskSizes); len(cidrs) > 0 && n != 1 && n != len(cidrs) {
		return fmt.Errorf("mask sizes %v do not match the CIDRs %v; give one mask size for all CIDRs, or one for each", maskSizes, cidrs)
	}
	pools := slices.DeleteFunc(slices.Clone(c.Subnets.ClusterPools), isFamily)
	for i, s := range cidrs {
		cidr, err := address.ParseSubnet(s)
		if err != nil {
			return err
		}
		if of := address.Of(cidr.Addr()); of != family {
			return fmt.Errorf("%q is an %s CIDR; write it in --%s", s, of, poolFlag(of, "cidr"))
		}
		pools = append(pools, configuration.ClusterPool{CIDR: s, MaskSize: maskSizes[min(i, len(maskSizes)-1)]})
	}
	c.Subnets.ClusterPools = pools
	return nil
}

// configuration returns the complete, valid configuration: the configuration of the file, changed by the flags that a
// source other than the file has set, completed with defaults and, if o.cilium is not nil, adapted to Cilium. An error
// names the flag, or the field and the file.
func (o *options) configuration(changed func(flag string) bool) (configuration.Configuration, error) {
	c := o.file
	for _, f := range sharedFlags {
		if !changed(f.flag) {
			continue
		}
		if err := f.set(&c, o.shared); err != nil {
			return c, fmt.Errorf("--%s: %w", f.flag, err)
		}
	}
	c.Complete()
	if o.cilium != nil {
		c.AdaptTo(*o.cilium)
	}
	errs := c.Validate(nil)
	if len(errs) == 0 {
		return c, nil
	}
	return c, o.located(errs[0], c, changed)
}

// located returns e, an error about a field, as an error that names the source of the value: the flag that has set the
// field or, if no flag has, the field in the file. Without a file, the error names the flag even if only its default applies.
func (o *options) located(e *field.Error, c configuration.Configuration, changed func(flag string) bool) error {
	flag, inFile := "", e.Field
	if strings.HasPrefix(e.Field, clusterPools) {
		flag, inFile = o.poolSource(e.Field, c.Subnets.ClusterPools, changed)
	} else {
		for _, f := range sharedFlags {
			if (e.Field == f.field || strings.HasPrefix(e.Field, f.field+".") || strings.HasPrefix(e.Field, f.field+"[")) && (o.configFile == "" || changed(f.flag)) {
				flag = f.flag
			}
		}
	}
	switch flag {
	case "":
		e.Field = inFile
		return fmt.Errorf("--config %s: %w", o.configFile, e)
	case enableIPv6:
		// The user has not written ipFamilies, which e names. Only the value false can cause an error: it sets ipFamilies to
		// IPv4, and the cluster pools have no IPv4 CIDR.
		return fmt.Errorf("--%s: Invalid value: false: nodes and pods would get IPv4 addresses only, but there is no IPv4 CIDR; set --%s, or set --%[1]s to true", flag, poolFlag(address.IPv4, "cidr"))
	}
	return fmt.Errorf("--%s: %s", flag, e.ErrorBody())
}

// poolSource returns the source of the value at path in the configuration: the flag whose value or default applies or, if
// there is none, the path in the file. The value is the list of cluster pools or a field of one of them. The flags set the
// CIDRs or the mask sizes of all cluster pools of one family (see setPools); the default of a mask size applies to CIDRs of
// a flag. For a list that neither a flag nor a file sets, the source is the flag of the IPv4 CIDRs. pools are the cluster
// pools of the configuration.
func (o *options) poolSource(path string, pools []configuration.ClusterPool, changed func(flag string) bool) (flag, inFile string) {
	// cidrs contains the families whose CIDRs a flag has set.
	cidrs := map[address.Family]bool{address.IPv4: len(o.shared.ipv4CIDRs) > 0, address.IPv6: len(o.shared.ipv6CIDRs) > 0}
	var i int
	var name string
	if n, _ := fmt.Sscanf(path, clusterPools+"[%d].%s", &i, &name); n < 2 {
		// The error is about the list, which is empty but must not be, or must be empty but is not.
		switch {
		case cidrs[address.IPv4], o.configFile == "" && !cidrs[address.IPv6]:
			return poolFlag(address.IPv4, "cidr"), ""
		case cidrs[address.IPv6]:
			return poolFlag(address.IPv6, "cidr"), ""
		}
		return "", path
	}
	family := familyOf(pools[i])
	switch {
	case name == "cidr" && cidrs[family]:
		return poolFlag(family, "cidr"), ""
	case name == "maskSize" && (cidrs[family] || changed(poolFlag(family, "mask-size"))):
		return poolFlag(family, "mask-size"), ""
	}
	// setPools keeps the order of the cluster pools of the file only within a family.
	nth := slices.Index(indexesOf(family, pools), i)
	return "", fmt.Sprintf("%s[%d].%s", clusterPools, indexesOf(family, o.file.Subnets.ClusterPools)[nth], name)
}

// poolFlag returns the flag that sets the CIDRs (cidr) or the mask sizes (mask-size) of the cluster pools of a family.
func poolFlag(family address.Family, what string) string {
	return "cluster-pool-" + strings.ToLower(family.String()) + "-" + what
}

// familyOf returns the family of a cluster pool; 0 if its CIDR is invalid.
func familyOf(p configuration.ClusterPool) address.Family {
	cidr, err := address.ParseSubnet(p.CIDR)
	if err != nil {
		return 0
	}
	return address.Of(cidr.Addr())
}

// indexesOf returns the indexes of the cluster pools of a family.
func indexesOf(family address.Family, pools []configuration.ClusterPool) (indexes []int) {
	for i, p := range pools {
		if familyOf(p) == family {
			indexes = append(indexes, i)
		}
	}
	return indexes
}

// hasField reports whether a file, decoded as JSON, has the field with a path such as pools.minFree.
func hasField(file map[string]json.RawMessage, path string) bool {
	name, rest, nested := strings.Cut(path, ".")
	value, ok := file[name]
	if !ok || !nested {
		return ok
	}
	var inner map[string]json.RawMessage
	return json.Unmarshal(value, &inner) == nil && hasField(inner, rest)
}
