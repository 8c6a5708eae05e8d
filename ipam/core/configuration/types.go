// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package configuration

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/subnetplan"
)

// Version and Kind are the apiVersion and the kind of the file.
const (
	Version = "config.fixedip.io/v1alpha1"
	Kind    = "FixedIPConfiguration"
)

// Configuration contains the settings of both programs. The value of a field that is absent in the file is the zero value
// until Complete or AdaptTo sets the default.
type Configuration struct {
	metav1.TypeMeta `json:",inline"`

	// ipFamilies are the IP families of fixed addresses, IPv4, IPv6 or both: every pod with a fixed address gets one address of
	// each. They have to be the families that the Cilium agents assign. Default: the families of subnets.clusterPools, or IPv4
	// if Kubernetes assigns the subnets.
	IPFamilies []string `json:"ipFamilies,omitempty"`
	// subnets defines where nodes get their subnets from, and what becomes of the subnet of a node that is gone.
	Subnets Subnets `json:"subnets,omitzero"`
	// pools defines how many addresses nodes have for pods without a fixed address.
	Pools Pools `json:"pools,omitzero"`
	// failover is the policy for pods whose node cannot take them, unless their workload defines another one: Wait, Migrate (to
	// another node, with the same address) or Reassign (to another node, with another address). Default: Wait.
	Failover v1alpha1.Failover `json:"failover,omitempty"`
	// allowAddressMigration allows an address to move to a node whose subnet does not contain it. With native routing by
	// subnets, such an address could not be reached; set it to true if your network advertises addresses one by one. Default:
	// true if routing-mode in Cilium's ConfigMap cilium-config is tunnel, otherwise false.
	AllowAddressMigration *bool `json:"allowAddressMigration,omitempty"`
	// strictNodes is the label selector of strict nodes, on which every pod gets a pool entry of its own; empty selects no
	// node. Default: fixedip.io/strict=true.
	StrictNodes *string `json:"strictNodes,omitempty"`
	// workloads are further kinds of workloads whose pods may have fixed addresses. The pods of StatefulSets have fixed
	// addresses by default; an element for StatefulSets replaces that default.
	Workloads []identity.Kind `json:"workloads,omitempty"`
	// schedulerNames are the names of the scheduler's profiles that enable FixedIP. Default: [fixedip-scheduler].
	SchedulerNames []string `json:"schedulerNames,omitempty"`
	// mismatchPolicy is the policy for pods that run with another address than their fixed address, or have no CiliumEndpoint:
	// Restart (evict the pod) or Report. Default: Restart; Report if adoption.podSelector is set.
	MismatchPolicy identity.OnMismatch `json:"mismatchPolicy,omitempty"`
	// adoption defines which pods of other schedulers keep the address that they run with.
	Adoption Adoption `json:"adoption,omitzero"`
	// protectNodesFrom are the autoscalers that must not remove nodes whose subnets have fixed addresses: cluster-autoscaler,
	// karpenter.
	ProtectNodesFrom []string `json:"protectNodesFrom,omitempty"`
}

// SubnetSource is the source of the subnets of nodes.
type SubnetSource string

const (
	// FromClusterPools means that subnets are taken from Subnets.ClusterPools.
	FromClusterPools SubnetSource = "ClusterPool"
	// FromNode means that subnets are taken from Node.spec.podCIDRs, which Kubernetes assigns.
	FromNode SubnetSource = "Node"
)

// Subnets defines the subnets of nodes.
type Subnets struct {
	// source is ClusterPool, or Node for spec.podCIDRs of the Nodes. Default: ClusterPool.
	Source SubnetSource `json:"source,omitempty"`
	// clusterPools are the CIDRs from which nodes get their subnets, in this order. Required if source is ClusterPool.
	ClusterPools []ClusterPool `json:"clusterPools,omitempty"`
	// orphanedPolicy is the policy for a subnet with fixed addresses whose node is gone: Inherit (another node takes over the
	// subnet), Hold (no other node takes it over) or Free (the fixed addresses are released). With Hold too, a node that is
	// named as successor takes the subnet over, and another node may if the failover policy of an address in it is Migrate.
	// Default: Inherit. If source is Node, Inherit acts like Hold.
	OrphanedPolicy subnetplan.OrphanPolicy `json:"orphanedPolicy,omitempty"`
	// orphanedGracePeriod is the time for which an orphaned subnet waits for its node before orphanedPolicy applies.
	// Default: 1m.
	OrphanedGracePeriod *metav1.Duration `json:"orphanedGracePeriod,omitempty"`
}

// ClusterPool is a CIDR from which nodes get their subnets.
type ClusterPool struct {
	// cidr is an IPv4 or IPv6 CIDR, such as 10.240.0.0/16.
	CIDR string `json:"cidr"`
	// maskSize is the prefix length of the subnets. Default: 24 for IPv4, 120 for IPv6.
	MaskSize int `json:"maskSize,omitempty"`
}

// Pools defines the number of dynamic addresses in the pool of each node, per family. Strict nodes have none.
type Pools struct {
	// minFree is the minimum number of free dynamic addresses in the pool of each node, per family. Default: 8.
	MinFree *int `json:"minFree,omitempty"`
	// maxDynamic is the maximum number of dynamic addresses, free or in use; the rest of the subnet is for fixed addresses.
	// Default: the number of pods that the node can run plus 3 for addresses of the node itself, but at most half of its subnet.
	MaxDynamic *int `json:"maxDynamic,omitempty"`
}

// Adoption defines which pods of other schedulers are adopted: the address that they run with becomes their fixed address.
type Adoption struct {
	// podSelector is the label selector of the pods of other schedulers that are adopted: the address that such a pod runs with
	// becomes its fixed address. Only bare pods and pods with the identity PodName are adopted. Default: no pod.
	PodSelector *metav1.LabelSelector `json:"podSelector,omitempty"`
}
