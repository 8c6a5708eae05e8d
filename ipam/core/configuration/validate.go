// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package configuration

import (
	"fmt"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/subnetplan"
)

// minFree is the minimum of Pools.MinFree: an agent with health checks does not start with a smaller pool
// (hasMinimumIPsInPool in Cilium's pkg/ipam/crd.go).
const minFree = 2

// The autoscalers that protectNodesFrom may name.
const (
	ClusterAutoscaler = "cluster-autoscaler"
	Karpenter         = "karpenter"
)

// Autoscalers contains every autoscaler that protectNodesFrom may name.
var Autoscalers = []string{ClusterAutoscaler, Karpenter}

// Validate returns an error for each invalid value of a complete configuration. A setting that AdaptTo has not set yet is
// valid. path is the path of the configuration itself; it may be nil.
func (c Configuration) Validate(path *field.Path) field.ErrorList {
	errs := append(c.Subnets.validate(path.Child("subnets")), c.validateFamilies(path.Child("ipFamilies"))...)
	errs = append(errs, c.Pools.validate(path.Child("pools"))...)
	switch policy, err := identity.ParseFailover(string(c.Failover)); {
	case err != nil:
		errs = append(errs, field.NotSupported(path.Child("failover"), c.Failover, []v1alpha1.Failover{v1alpha1.Wait, v1alpha1.Migrate, v1alpha1.Reassign}))
	case policy == v1alpha1.Migrate && c.AllowAddressMigration != nil && !*c.AllowAddressMigration:
		errs = append(errs, field.Invalid(path.Child("failover"), c.Failover, "addresses cannot migrate while allowAddressMigration is false; set it to true if the routing of the cluster carries single addresses"))
	}
	if _, err := c.Strict(); err != nil {
		errs = append(errs, field.Invalid(path.Child("strictNodes"), *c.StrictNodes, err.Error()))
	}
	errs = append(errs, identity.ValidateKinds(path.Child("workloads"), c.Workloads)...)
	for i, name := range c.SchedulerNames {
		if name == "" {
			errs = append(errs, field.Required(path.Child("schedulerNames").Index(i), "must be the schedulerName of pods"))
		}
	}
	if _, err := identity.ParseOnMismatch(string(c.MismatchPolicy)); err != nil {
		errs = append(errs, field.NotSupported(path.Child("mismatchPolicy"), c.MismatchPolicy, []identity.OnMismatch{identity.Restart, identity.Report}))
	}
	if s := c.Adoption.PodSelector; s != nil {
		if _, err := metav1.LabelSelectorAsSelector(s); err != nil {
			errs = append(errs, field.Invalid(path.Child("adoption", "podSelector"), metav1.FormatLabelSelector(s), err.Error()))
		}
	}
	for i, name := range c.ProtectNodesFrom {
		if !slices.Contains(Autoscalers, name) {
			errs = append(errs, field.NotSupported(path.Child("protectNodesFrom").Index(i), name, Autoscalers))
		}
	}
	return errs
}

func (c Configuration) validateFamilies(path *field.Path) (errs field.ErrorList) {
	seen := map[string]bool{}
	for i, f := range c.IPFamilies {
		if _, err := address.ParseFamily(f); err != nil {
			errs = append(errs, field.NotSupported(path.Index(i), f, []string{address.IPv4.String(), address.IPv6.String()}))
		} else if seen[f] {
			errs = append(errs, field.Duplicate(path.Index(i), f))
		}
		seen[f] = true
	}
	if len(errs) > 0 || c.Subnets.Source == FromNode || len(c.Subnets.validate(nil)) > 0 {
		return errs
	}
	for i, f := range c.IPFamilies {
		if !slices.Contains(c.Subnets.families(), f) {
			errs = append(errs, field.Invalid(path.Index(i), f, fmt.Sprintf("subnets.clusterPools has no %s CIDR; add one, or remove %[1]s from ipFamilies", f)))
		}
	}
	return errs
}

func (s Subnets) validate(path *field.Path) (errs field.ErrorList) {
	pools := path.Child("clusterPools")
	switch s.Source {
	case FromClusterPools:
		if len(s.ClusterPools) == 0 {
			errs = append(errs, field.Required(pools, "must be the CIDRs from which nodes get their subnets, unless subnets.source is Node"))
		}
	case FromNode:
		if len(s.ClusterPools) > 0 {
			errs = append(errs, field.Forbidden(pools, "if subnets.source is Node, the subnets come from spec.podCIDRs of the Nodes"))
		}
	default:
		errs = append(errs, field.NotSupported(path.Child("source"), s.Source, []SubnetSource{FromClusterPools, FromNode}))
	}
	var earlier []netip.Prefix
	for i, p := range s.ClusterPools {
		cidr, err := address.ParseSubnet(p.CIDR)
		if err != nil {
			errs = append(errs, field.Invalid(pools.Index(i).Child("cidr"), p.CIDR, err.Error()))
			continue
		}
		if err := (address.ClusterPool{CIDR: cidr, MaskSize: p.MaskSize}).Validate(); err != nil {
			errs = append(errs, field.Invalid(pools.Index(i).Child("maskSize"), p.MaskSize, err.Error()))
		}
		for _, other := range earlier {
			if cidr.Overlaps(other) {
				errs = append(errs, field.Invalid(pools.Index(i).Child("cidr"), p.CIDR, "overlaps "+other.String()))
			}
		}
		earlier = append(earlier, cidr)
	}
	if !slices.Contains(subnetplan.Policies, s.OrphanedPolicy) {
		errs = append(errs, field.NotSupported(path.Child("orphanedPolicy"), s.OrphanedPolicy, subnetplan.Policies))
	}
	if d := ptr.Deref(s.OrphanedGracePeriod, metav1.Duration{}).Duration; d < 0 {
		errs = append(errs, field.Invalid(path.Child("orphanedGracePeriod"), d.String(), "must not be negative"))
	}
	return errs
}

func (p Pools) validate(path *field.Path) (errs field.ErrorList) {
	free, most := ptr.Deref(p.MinFree, 0), ptr.Deref(p.MaxDynamic, 0)
	if free < minFree {
		errs = append(errs, field.Invalid(path.Child("minFree"), free, fmt.Sprintf("must be at least %d: a Cilium agent with health checks does not start with a smaller pool", minFree)))
	}
	if most != 0 && most < free {
		errs = append(errs, field.Invalid(path.Child("maxDynamic"), most, fmt.Sprintf("must be 0, or at least minFree (%d)", free)))
	}
	return errs
}
