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

// Subnet contains the fields of a NodeSubnet from which this package decides.
type Subnet struct {
	CIDR netip.Prefix
	// Node is the node that has the subnet, or had it last; empty if no node ever had the subnet.
	Node string
	// Previous is the node from which Node inherited the subnet; empty if there is none.
	Previous string
	// Successor is the node that the administrator named to inherit the subnet; empty if there is none.
	Successor string
	// OrphanedSince is the time at which the controller first observed that the subnet has no node; zero if it has not observed
	// that. For an inherited subnet, OrphanedSince stays set until Node has inherited all subnets of Previous that are needed.
	OrphanedSince time.Time
	// Constraints are the zone, region, node pool and taints of Node; nil if they are not recorded.
	Constraints *v1alpha1.NodeConstraints
	// Object is the NodeSubnet as it was read; nil if there is none. It must not be changed: a write changes a copy.
	Object *v1alpha1.NodeSubnet
}

// Family returns the family of the subnet.
func (s Subnet) Family() address.Family { return address.Of(s.CIDR.Addr()) }

// FromNodeSubnet returns the subnet of a NodeSubnet. ok is false if it has no valid CIDR: the API server refuses such
// an object.
func FromNodeSubnet(ns *v1alpha1.NodeSubnet) (s Subnet, ok bool) {
	// The name need not be compared: the API server refuses an object whose name does not match its CIDR.
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

// FromNodeSubnets returns the subnets of several NodeSubnets, in their order, without those that have no valid CIDR.
func FromNodeSubnets(list []v1alpha1.NodeSubnet) []Subnet {
	subnets := make([]Subnet, 0, len(list))
	for i := range list {
		if s, ok := FromNodeSubnet(&list[i]); ok {
			subnets = append(subnets, s)
		}
	}
	return subnets
}

// Find returns the subnet with the given CIDR, or the zero Subnet, whose Object is nil.
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

// Clash returns a subnet in all that does not allow a new claim: a subnet that overlaps the claim or, if perFamily is true,
// another subnet of the node in the same family. The claim itself does not count. Each controller creates its claim before it
// lists all claims, so that the controller with the later of two claims always sees the earlier one. If each controller sees
// the claim of the other, both withdraw their claims.
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

// Lacking returns the families that have a cluster pool, but in which a node has no subnet. has are the subnets of the node.
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

// nodePoolLabels are the labels in which providers write the node pool or node group of a node.
var nodePoolLabels = []string{
	"cloud.google.com/gke-nodepool", "eks.amazonaws.com/nodegroup", "kubernetes.azure.com/agentpool", "karpenter.sh/nodepool",
	"kops.k8s.io/instancegroup", "node.cluster.x-k8s.io/pool", "cluster.x-k8s.io/deployment-name", "node.kubernetes.io/instance-pool",
}

// ConstraintsOf returns the zone, region and node pool of a node, and those of its taints for which keepsAway is true.
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

// keepsAway reports whether a taint keeps pods from a node permanently. Taints that follow the state of the node or of its
// agent do not count, nor does the effect PreferNoSchedule.
func keepsAway(t corev1.Taint) bool {
	ofState := strings.HasPrefix(t.Key, "node.kubernetes.io/") || strings.HasPrefix(t.Key, "node.cilium.io/") || strings.HasPrefix(t.Key, "node.cloudprovider.kubernetes.io/")
	return !ofState && t.Effect != corev1.TaintEffectPreferNoSchedule
}

// suits reports whether a node with the constraints h can take the pods of a node that is gone: it is in the same zone and
// region, if these are recorded, and has no taint that these pods might not tolerate. Every node suits if the constraints of
// the lost node are not recorded.
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

// samePool reports whether a node with the constraints h is in the same node pool as the node that is gone. It is false if
// the constraints or the node pool of the lost node are not recorded.
func samePool(h v1alpha1.NodeConstraints, lost *v1alpha1.NodeConstraints) bool {
	return lost != nil && len(lost.NodePool) > 0 && maps.Equal(h.NodePool, lost.NodePool)
}

// Assignee is the node for which a subnet is claimed.
type Assignee struct {
	Node string
	// NodeUID is the UID of the Node, and CiliumNodeUID that of its CiliumNode; either may be empty.
	NodeUID, CiliumNodeUID types.UID
}
