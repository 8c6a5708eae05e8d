// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package config contains the configuration of the controller and its validation.
//
// The package must not read files or flags: the command fixedip-controller does that.
package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/conformance"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/controller/scaledown"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/nodepool"
	"fixedip.io/fixedip/ipam/core/subnetplan"
)

// minFree is the minimum of Watermark.Free: an agent with health checks does not start with a smaller pool
// (hasMinimumIPsInPool in Cilium's pkg/ipam/crd.go).
const minFree = 2

// SubnetSource is the source of the subnets of nodes.
type SubnetSource string

const (
	// ClusterPool means that subnets are taken from Config.ClusterPools.
	ClusterPool SubnetSource = "ClusterPool"
	// FromNode means that subnets are taken from Node.spec.podCIDRs, which Kubernetes assigns.
	FromNode SubnetSource = "Node"
)

// DefaultResyncPeriod is the default of Config.ResyncPeriod.
const DefaultResyncPeriod = source.ResyncPeriod

// minWritesPerMinute is the minimum of Config.WritesPerMinute: enough writes to fill a pool, mark excess entries for
// release, and remove them within one minute.
const minWritesPerMinute = 4

// Config is the configuration of the controller.
type Config struct {
	// ClusterPools are the CIDRs from which subnets are taken, in this order. They have to be empty if SubnetSource is
	// FromNode.
	ClusterPools []address.ClusterPool
	SubnetSource SubnetSource
	// SubnetPolicy is the policy for orphaned subnets. Inherit and Free apply after OrphanGracePeriod.
	SubnetPolicy      subnetplan.OrphanPolicy
	OrphanGracePeriod time.Duration
	// ProtectNodesFrom are the autoscalers that must not remove nodes whose subnets have reserved addresses: keys of
	// scaledown.Annotations.
	ProtectNodesFrom []string
	// Watermark bounds the number of dynamic entries in each pool.
	Watermark nodepool.Watermark
	// StrictNodes selects the nodes whose pools have no dynamic entries. The scheduler needs the same value.
	StrictNodes labels.Selector
	// WritesPerMinute is the maximum number of writes to one CiliumNode in any minute. Urgent writes count, but the limit does
	// not delay them.
	WritesPerMinute int
	// StripManagedFields is true if the controller removes the managedFields of CiliumNodes.
	StripManagedFields bool
	// Cooldown is the minimum time for which a released address is offered to no pod.
	Cooldown time.Duration
	// Adoption selects the pods of other schedulers whose current IP becomes their fixed address.
	Adoption identity.Adoption
	// Failover is the failover policy of workloads that have none. The scheduler applies it and needs the same value.
	Failover v1alpha1.Failover
	// Workloads are the kinds of workloads whose pods may have fixed addresses, besides StatefulSets.
	Workloads []identity.Kind
	// FinalizerDeadline is the time from the deletion of a FixedIP until its finalizer is removed even if its addresses could
	// not be released.
	FinalizerDeadline time.Duration
	// ResyncPeriod is the interval at which each FixedIP is reconciled without an event.
	ResyncPeriod time.Duration
	// Namespace is the namespace of the controller's Leases.
	Namespace string
	// DryRun is true if the API server only validates the writes, and stores none of them.
	DryRun bool
	// Verify is the configuration of the controllers of mismatches, adoption and CiliumEndpoints.
	Verify conformance.Config
}

// SubnetRules returns the rules for subnets. If SubnetSource is FromNode, no other node inherits a subnet: policy Inherit
// becomes Hold.
func (c Config) SubnetRules() subnetplan.Rules {
	policy := c.SubnetPolicy
	if c.SubnetSource == FromNode && policy == subnetplan.Inherit {
		// Kubernetes may assign the podCIDR of a deleted node to any new node.
		policy = subnetplan.Hold
	}
	return subnetplan.Rules{Pools: c.ClusterPools, Policy: policy, GracePeriod: c.OrphanGracePeriod, Failover: c.Failover}
}

// Validate returns an error for each invalid value. The field path of an error is the name of the flag.
func (c Config) Validate() field.ErrorList {
	var errs field.ErrorList
	check := func(ok bool, flag string, value any, message string) {
		if !ok {
			errs = append(errs, field.Invalid(field.NewPath(flag), value, message))
		}
	}
	switch c.SubnetSource {
	case ClusterPool:
		if len(c.ClusterPools) == 0 {
			errs = append(errs, field.Required(field.NewPath("cluster-pool-ipv4-cidr"), "set the CIDR from which nodes get their subnets, or set --cluster-pool-ipv6-cidr (with --enable-ipv6) or --subnet-source=Node"))
		}
	case FromNode:
		if len(c.ClusterPools) > 0 {
			errs = append(errs, field.Forbidden(field.NewPath(poolFlag(c.ClusterPools[0], "cidr")), "with --subnet-source=Node the subnets come from spec.podCIDRs of the Nodes; remove this flag"))
		}
	default:
		errs = append(errs, field.NotSupported(field.NewPath("subnet-source"), c.SubnetSource, []SubnetSource{ClusterPool, FromNode}))
	}
	if !slices.Contains(subnetplan.Policies, c.SubnetPolicy) {
		errs = append(errs, field.NotSupported(field.NewPath("orphaned-subnet-policy"), c.SubnetPolicy, subnetplan.Policies))
	}
	check(c.OrphanGracePeriod >= 0, "orphaned-subnet-grace-period", c.OrphanGracePeriod.String(), "must not be negative")
	for _, name := range c.ProtectNodesFrom {
		if _, known := scaledown.Annotations[name]; !known {
			errs = append(errs, field.NotSupported(field.NewPath("protect-nodes-from"), name, slices.Sorted(maps.Keys(scaledown.Annotations))))
		}
	}
	for i, p := range c.ClusterPools {
		if err := p.Validate(); err != nil {
			check(false, poolFlag(p, "mask-size"), p.MaskSize, err.Error())
		}
		for _, other := range c.ClusterPools[:i] {
			check(!p.CIDR.Overlaps(other.CIDR), poolFlag(p, "cidr"), p.CIDR.String(), "overlaps "+other.CIDR.String())
		}
	}
	w := c.Watermark
	check(w.Free >= minFree, "min-free-ips", w.Free, fmt.Sprintf("must be at least %d: a Cilium agent with health checks does not start with a smaller pool", minFree))
	check(w.Max == 0 || w.Max >= w.Free, "max-dynamic-ips", w.Max, "must be 0, or at least min-free-ips")
	check(w.Excess >= 0, "max-surplus-ips", w.Excess, "must not be negative")
	check(c.WritesPerMinute >= minWritesPerMinute, "node-writes-per-minute", c.WritesPerMinute, fmt.Sprintf("must be at least %d: enough to fill a pool, mark excess entries for release and remove them within one minute", minWritesPerMinute))
	check(c.Cooldown >= 0, "address-cooldown", c.Cooldown.String(), "must not be negative")
	check(!slices.Contains(c.Adoption.ExcludeDBBranch, ""), "exclude-dbbranch-prefixes", "", "must not be empty: every label begins with the empty prefix")
	errs = append(errs, identity.ValidateKinds(field.NewPath("workload-kind"), c.Workloads)...)
	check(c.FinalizerDeadline > 0, "force-finalize-after", c.FinalizerDeadline.String(), "must be more than 0, so that the release has time")
	check(c.ResyncPeriod >= time.Second, "resync-period", c.ResyncPeriod.String(), "must be at least 1s")
	if c.Namespace == "" {
		errs = append(errs, field.Required(field.NewPath("leader-election-namespace"), "name the namespace for the Leases, here or in the environment variable POD_NAMESPACE"))
	}
	v := c.Verify
	if _, err := identity.ParseOnMismatch(v.OnMismatch); err != nil {
		errs = append(errs, field.NotSupported(field.NewPath("mismatch-policy"), v.OnMismatch, []identity.OnMismatch{identity.Restart, identity.Report}))
	}
	check(v.Restarts >= 1, "max-concurrent-restarts", v.Restarts, "must be at least 1; to restart no pods, set mismatch-policy to Report")
	check(v.RestartAfter >= time.Second, "mismatch-grace-period", v.RestartAfter.String(), "must be at least 1s")
	check(v.EndpointGracePeriod >= time.Second, "cep-grace-period", v.EndpointGracePeriod.String(), "must be at least 1s")
	check(v.EndpointTermination >= time.Second, "cep-termination-timeout", v.EndpointTermination.String(), "must be at least 1s")
	return errs
}

// poolFlag returns the name of a flag for the cluster pools of the family of p.
func poolFlag(p address.ClusterPool, suffix string) string {
	return "cluster-pool-" + strings.ToLower(p.Family().String()) + "-" + suffix
}
