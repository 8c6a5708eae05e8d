// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnetplan

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
)

// Subnet is a NodeSubnet as the decisions read it.
type Subnet struct {
	CIDR netip.Prefix
	// Node has the subnet, or had it last; empty: no node ever had it.
	Node string
	// Previous is the node that Node inherited it from.
	Previous string
	// Successor is the heir that a person chose.
	Successor string
	// OrphanedSince is when the controller first observed that the node is gone; zero: it has not.
	OrphanedSince time.Time
	// Constraints are what the node required of its pods; nil: not recorded.
	Constraints *v1alpha1.NodeConstraints
	// Object is the NodeSubnet, to write it; nil: there is none. It must not be changed.
	Object *v1alpha1.NodeSubnet
}

// Family returns the family of the subnet.
func (s Subnet) Family() address.Family { return address.Of(s.CIDR.Addr()) }

// FromNodeSubnet returns the subnet of a NodeSubnet. ok is false if it has no valid CIDR: the API server refuses such
// an object.
func FromNodeSubnet(ns *v1alpha1.NodeSubnet) (s Subnet, ok bool) {
	// The API server refuses an object whose name does not say the same.
	cidr, err := address.ParseSubnet(ns.Spec.CIDR)
	if err != nil {
		return Subnet{}, false
	}
	s = Subnet{CIDR: cidr, Node: ns.Spec.NodeName, Previous: ns.Spec.PreviousNodeName, Successor: ns.Spec.Successor, Constraints: ns.Status.NodeConstraints, Object: ns}
	if ns.Status.OrphanedSince != nil {
		s.OrphanedSince = ns.Status.OrphanedSince.Time
	}
	return s, true
}

// FromNodeSubnets returns the subnets of several NodeSubnets, in their order.
func FromNodeSubnets(list []v1alpha1.NodeSubnet) []Subnet {
	var subnets []Subnet
	for i := range list {
		if s, ok := FromNodeSubnet(&list[i]); ok {
			subnets = append(subnets, s)
		}
	}
	return subnets
}

// Find returns the subnet with a CIDR. Its Object is nil if there is none.
func Find(list []Subnet, cidr netip.Prefix) Subnet {
	if i := slices.IndexFunc(list, func(s Subnet) bool { return s.CIDR == cidr }); i >= 0 {
		return list[i]
	}
	return Subnet{}
}

// CIDRs returns the CIDRs of subnets, in their order.
func CIDRs(subnets []Subnet) []netip.Prefix {
	var cidrs []netip.Prefix
	for _, s := range subnets {
		cidrs = append(cidrs, s.CIDR)
	}
	return cidrs
}

// Clash returns a subnet of the list that forbids a node to keep a claim that it has just made: one that overlaps it,
// or another one of the same family that the node has claimed meanwhile. Each controller creates its claim before it
// lists all claims, so that of two claims the later one always sees the earlier. Two that see each other are both
// withdrawn.
func Clash(claim Subnet, all []Subnet, perFamily bool) (clash Subnet, found bool) {
	for _, s := range all {
		switch {
		case s.CIDR == claim.CIDR && s.Node == claim.Node:
		case s.CIDR.Overlaps(claim.CIDR), perFamily && s.Node == claim.Node && s.Family() == claim.Family():
			return s, true
		}
	}
	return Subnet{}, false
}

// Lacking returns the families that the cluster has pools for and that a node has no subnet in.
func Lacking(pools []address.ClusterPool, has []netip.Prefix) []address.Family {
	var lacking []address.Family
	for _, f := range address.Families {
		pooled := slices.ContainsFunc(pools, func(p address.ClusterPool) bool { return p.Family() == f })
		if pooled && !slices.ContainsFunc(has, func(s netip.Prefix) bool { return address.Of(s.Addr()) == f }) {
			lacking = append(lacking, f)
		}
	}
	return lacking
}

// nodePoolLabels name the pool or group of a node at its provider.
var nodePoolLabels = []string{
	"cloud.google.com/gke-nodepool", "eks.amazonaws.com/nodegroup", "kubernetes.azure.com/agentpool", "karpenter.sh/nodepool",
	"kops.k8s.io/instancegroup", "node.cluster.x-k8s.io/pool", "cluster.x-k8s.io/deployment-name", "node.kubernetes.io/instance-pool",
}

// ConstraintsOf returns what a node requires of pods. It leaves out the taints that come and go with the state of the
// node or of its agent.
func ConstraintsOf(node *corev1.Node) v1alpha1.NodeConstraints {
	c := v1alpha1.NodeConstraints{Zone: node.Labels[corev1.LabelTopologyZone], Region: node.Labels[corev1.LabelTopologyRegion]}
	for _, key := range nodePoolLabels {
		if value, ok := node.Labels[key]; ok {
			if c.NodePool == nil {
				c.NodePool = map[string]string{}
			}
			c.NodePool[key] = value
		}
	}
	for _, t := range node.Spec.Taints {
		if keepsAway(t) {
			c.Taints = append(c.Taints, corev1.Taint{Key: t.Key, Value: t.Value, Effect: t.Effect})
		}
	}
	slices.SortFunc(c.Taints, func(a, b corev1.Taint) int { return strings.Compare(a.ToString(), b.ToString()) })
	return c
}

// keepsAway reports whether a taint is one that somebody chose for the node and that keeps pods from it.
func keepsAway(t corev1.Taint) bool {
	ofState := strings.HasPrefix(t.Key, "node.kubernetes.io/") || strings.HasPrefix(t.Key, "node.cilium.io/") || strings.HasPrefix(t.Key, "node.cloudprovider.kubernetes.io/")
	return !ofState && t.Effect != corev1.TaintEffectPreferNoSchedule
}

// suits reports whether a node can take the pods of a node that is gone: it is in the same zone and region, and has no
// taint that these pods might not tolerate.
func suits(h v1alpha1.NodeConstraints, lost *v1alpha1.NodeConstraints) bool {
	if lost == nil {
		return true
	}
	if lost.Zone != "" && h.Zone != lost.Zone || lost.Region != "" && h.Region != lost.Region {
		return false
	}
	return !slices.ContainsFunc(h.Taints, func(t corev1.Taint) bool {
		return !slices.ContainsFunc(lost.Taints, func(l corev1.Taint) bool { return l.MatchTaint(&t) && l.Value == t.Value })
	})
}

// samePool reports whether a node is of the node pool of a node that is gone.
func samePool(h v1alpha1.NodeConstraints, lost *v1alpha1.NodeConstraints) bool {
	return lost != nil && len(lost.NodePool) > 0 && maps.Equal(h.NodePool, lost.NodePool)
}

// Holder is the node that a subnet is claimed for.
type Holder struct {
	Node string
	// NodeUID is the UID of the Node, and CiliumNodeUID that of its CiliumNode; either may be empty.
	NodeUID, CiliumNodeUID types.UID
}
