// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// NodeSubnet records which node has a subnet. Its name is derived from the CIDR, so that of two controllers that
// record the same subnet only one can create it. The node keeps the subnet until the Node is deleted, whatever
// happens to its CiliumNode. After that, the NodeSubnet exists until another node inherits the subnet, or until the
// grace period is over, no FixedIP reserves an address in the subnet, and no pool has an entry in it. A NodeSubnet
// that is deleted while its node has the subnet is created again.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=nsub,categories=fixedip-all
// +kubebuilder:subresource:status
// +kubebuilder:selectablefield:JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="CIDR",type=string,JSONPath=`.spec.cidr`
// +kubebuilder:printcolumn:name="NODE",type=string,JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="READY",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="REASON",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="SUCCESSOR",type=string,JSONPath=`.spec.successor`,priority=1
// +kubebuilder:printcolumn:name="ORPHANED",type=date,JSONPath=`.status.orphanedSince`,priority=1
// +kubebuilder:validation:XValidation:rule="!self.spec.cidr.contains('.') || self.metadata.name == self.spec.cidr.replace('.', '-').replace('/', '-')",message="metadata.name must be spec.cidr with a dash for each dot and slash, such as 10-240-1-0-24"
// +kubebuilder:validation:XValidation:rule="self.spec.cidr.contains('.') || (self.metadata.name.split('-').size() == 9 && self.metadata.name.split('-')[8] == self.spec.cidr.split('/')[1])",message="metadata.name of an IPv6 subnet must be its eight groups and its prefix length, separated by dashes, such as fd00-240-0-0-0-0-0-0-64"
type NodeSubnet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec defines the subnet and the node that has it.
	// +required
	Spec NodeSubnetSpec `json:"spec"`
	// status is the last observed state of the assignment of the subnet.
	// +optional
	Status NodeSubnetStatus `json:"status,omitempty"`
}

// NodeSubnetSpec defines a subnet and the node that has it.
//
// +kubebuilder:validation:XValidation:rule="self.cidr == oldSelf.cidr",fieldPath=".cidr",message="immutable",reason=FieldValueForbidden
type NodeSubnetSpec struct {
	// cidr is the subnet in canonical form.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=43
	// +kubebuilder:validation:XValidation:rule="isCIDR(self)",message="must be a valid CIDR",reason=FieldValueInvalid
	// +kubebuilder:validation:XValidation:rule="!isCIDR(self) || (cidr(self) == cidr(self).masked() && string(cidr(self)) == self)",message="must be in canonical form without host bits, such as 10.240.1.0/24 or fd00:240::/64",reason=FieldValueInvalid
	CIDR string `json:"cidr"`
	// nodeName is the node that has the subnet, or had it last. It is empty for a subnet that never had a node and in
	// which a FixedIP reserves an address.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$`
	NodeName string `json:"nodeName,omitempty"`
	// nodeUID is the UID of the Node that nodeName names.
	// +optional
	NodeUID types.UID `json:"nodeUID,omitempty"`
	// ciliumNodeUID is the UID of the CiliumNode that the controller writes the subnet to. It is set before that
	// write, so that no controller that gives the subnet to another node can overlook the write.
	// +optional
	CiliumNodeUID types.UID `json:"ciliumNodeUID,omitempty"`
	// previousNodeName is the node that the current node inherited the subnet from.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	PreviousNodeName string `json:"previousNodeName,omitempty"`
	// successor is the node that inherits the subnet at once when the node in nodeName is gone, whatever
	// orphanedPolicy is, if a FixedIP reserves an address in the subnet. It has no effect if Kubernetes assigns
	// the subnets (subnets.source: Node).
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$`
	Successor string `json:"successor,omitempty"`
}

// NodeSubnetStatus is the last observed state of the assignment of a subnet.
type NodeSubnetStatus struct {
	// orphanedSince is when the controller first observed that the node is gone.
	// +optional
	OrphanedSince *metav1.Time `json:"orphanedSince,omitempty"`
	// gracePeriodEnd is the end of the grace period of an orphaned subnet. Until then only a node with the name of
	// the former node, the node that spec.successor names, or a node whose label fixedip.io/replaces-node names
	// the former node gets the subnet. If an address in the subnet may migrate, another suitable node gets the
	// subnet after at most 10 seconds.
	// +optional
	GracePeriodEnd *metav1.Time `json:"gracePeriodEnd,omitempty"`
	// nodeConstraints are the zone, region, node pool and taints of the node, recorded while the node existed.
	// +optional
	NodeConstraints *NodeConstraints `json:"nodeConstraints,omitempty"`
	// resumed counts how often a controller continued an assignment that was not complete. Each increment changes the
	// resourceVersion of the NodeSubnet, so that the controller that created the NodeSubnet cannot delete it any more.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Resumed int32 `json:"resumed,omitempty"`
	// conditions are the state of the assignment: Ready summarizes Assigned and the absence of overlapping subnets.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// NodeConstraints are the zone, region, node pool and taints of a node. When the node is gone, they limit which other nodes may
// inherit its subnet: the zone and region must be the same, and no taint may be added. A node of the same node pool is
// preferred. The limits do not apply to a node that the administrator named or to which an orphaned pod is nominated.
type NodeConstraints struct {
	// zone is the label topology.kubernetes.io/zone.
	// +optional
	Zone string `json:"zone,omitempty"`
	// region is the label topology.kubernetes.io/region.
	// +optional
	Region string `json:"region,omitempty"`
	// nodePool are the labels that name the pool or group of the node at its provider.
	// +optional
	NodePool map[string]string `json:"nodePool,omitempty"`
	// taints are the taints that keep pods away, except those that Kubernetes and Cilium set because of the node's state.
	// +optional
	// +listType=atomic
	Taints []corev1.Taint `json:"taints,omitempty"`
}

// ConditionAssigned is True if the CiliumNode of the node has the subnet. The other condition, ConditionReady, is True if
// pods can get addresses of the subnet: the subnet is assigned, and the subnets of its node do not overlap those of another
// node. The reasons of ConditionReady are those of ConditionAssigned, and ReasonSubnetOverlap.
const ConditionAssigned = "Assigned"

// The reasons of ConditionAssigned.
const (
	// ReasonPending means that the NodeSubnet exists and no CiliumNode has the subnet yet.
	ReasonPending = "Pending"
	// ReasonAssigned means that the CiliumNode of the node has the subnet.
	ReasonAssigned = "Assigned"
	// ReasonOrphaned means that the node is gone.
	ReasonOrphaned = "Orphaned"
)

// NodeSubnetList is a list of NodeSubnets.
//
// +kubebuilder:object:root=true
type NodeSubnetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NodeSubnet `json:"items"`
}
