// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package configuration

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/subnetplan"
)

// Defaults of fields. The flags of the controller for the same settings have the same defaults.
const (
	DefaultMinFree             = 8
	DefaultOrphanedGracePeriod = time.Minute
	DefaultStrictNodes         = "fixedip.io/strict=true"
	DefaultSchedulerName       = "fixedip-scheduler"
)

// defaultMaskSizes are the defaults of ClusterPool.MaskSize. Key: the family of the CIDR.
var defaultMaskSizes = map[address.Family]int{address.IPv4: 24, address.IPv6: 120}

// Complete sets absent fields to their defaults, except AllowAddressMigration: AdaptTo sets that field.
func (c *Configuration) Complete() {
	for i := range c.Subnets.ClusterPools {
		p := &c.Subnets.ClusterPools[i]
		if cidr, err := address.ParseSubnet(p.CIDR); err == nil && p.MaskSize == 0 {
			p.MaskSize = defaultMaskSizes[address.Of(cidr.Addr())]
		}
	}
	if len(c.IPFamilies) == 0 {
		c.IPFamilies = c.Subnets.families()
	}
	if len(c.IPFamilies) == 0 {
		c.IPFamilies = []string{address.IPv4.String()}
	}
	setDefault(&c.Subnets.Source, FromClusterPools)
	setDefault(&c.Subnets.OrphanedPolicy, subnetplan.Inherit)
	setDefault(&c.Failover, v1alpha1.Wait)
	setDefault(&c.Subnets.OrphanedGracePeriod, &metav1.Duration{Duration: DefaultOrphanedGracePeriod})
	setDefault(&c.Pools.MinFree, ptr.To(DefaultMinFree))
	setDefault(&c.Pools.MaxDynamic, ptr.To(0))
	setDefault(&c.StrictNodes, ptr.To(DefaultStrictNodes))
	if c.Adoption.PodSelector != nil {
		// If fixedip adopts pods of another scheduler, it evicts no pod until an administrator sets Restart.
		setDefault(&c.MismatchPolicy, identity.Report)
	}
	setDefault(&c.MismatchPolicy, identity.Restart)
	if c.SchedulerNames == nil {
		c.SchedulerNames = []string{DefaultSchedulerName}
	}
	for i := range c.Workloads {
		setDefault(&c.Workloads[i].Enabled, identity.ByAnnotation)
	}
}

// families returns the families of the cluster pools, IPv4 first.
func (s Subnets) families() (families []string) {
	for _, f := range address.Families {
		if slices.ContainsFunc(s.ClusterPools, func(p ClusterPool) bool {
			cidr, err := address.ParseSubnet(p.CIDR)
			return err == nil && address.Of(cidr.Addr()) == f
		}) {
			families = append(families, f.String())
		}
	}
	return families
}

func setDefault[T comparable](field *T, value T) {
	if *field == *new(T) {
		*field = value
	}
}
