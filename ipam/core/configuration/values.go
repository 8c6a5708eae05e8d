// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package configuration

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
)

// Families returns the families of fixed addresses.
func (c Configuration) Families() ([]address.Family, error) {
	var families []address.Family
	for _, name := range c.IPFamilies {
		f, err := address.ParseFamily(name)
		if err != nil {
			return nil, fmt.Errorf("ipFamilies: %w", err)
		}
		families = append(families, f)
	}
	return families, nil
}

// IPv4Only reports whether ipFamilies leaves out IPv6, so that the IPv6 addresses of pods are not adopted.
func (c Configuration) IPv4Only() bool { return !slices.Contains(c.IPFamilies, address.IPv6.String()) }

// Strict returns the selector of strict nodes. It selects no node if strictNodes is empty.
func (c Configuration) Strict() (labels.Selector, error) {
	text := ptr.Deref(c.StrictNodes, "")
	if text == "" {
		return labels.Nothing(), nil
	}
	return identity.ParseLabels(text)
}

// Adopted returns the selector of the pods to adopt; nil if none are adopted.
func (c Configuration) Adopted() (labels.Selector, error) {
	if c.Adoption.PodSelector == nil {
		return nil, nil
	}
	return metav1.LabelSelectorAsSelector(c.Adoption.PodSelector)
}

// ClusterPools returns the cluster pools, without those of a family that ipFamilies leaves out.
func (c Configuration) ClusterPools() (pools []address.ClusterPool, err error) {
	families, err := c.Families()
	if err != nil {
		return nil, err
	}
	for _, p := range c.Subnets.ClusterPools {
		cidr, err := address.ParseSubnet(p.CIDR)
		if err != nil {
			return nil, fmt.Errorf("subnets.clusterPools: %w", err)
		}
		for _, f := range families {
			if f == address.Of(cidr.Addr()) {
				pools = append(pools, address.ClusterPool{CIDR: cidr, MaskSize: p.MaskSize})
			}
		}
	}
	return pools, nil
}
