// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Finalizer keeps a FixedIP until its addresses have been released from the pools.
const Finalizer = "fixedip.io/pool-entry"

// AnnotationUID contains the metadata.uid of a FixedIP. The controller writes it soon after the FixedIP was created. A value
// that differs from metadata.uid therefore means that the FixedIP was restored from a backup.
const AnnotationUID = "fixedip.io/uid"

// FixedIP is the durable record of the addresses of one identity. It has the name of the pod or,
// for a slot, the name of the workload and an address. The controller creates it from the claim that the
// scheduler wrote into a CiliumNode. Deleting it releases the addresses once the pod is gone.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=fip,categories=fixedip-all
// +kubebuilder:subresource:status
// +kubebuilder:selectablefield:JSONPath=`.spec.nodeName`
// +kubebuilder:selectablefield:JSONPath=`.spec.podName`
// +kubebuilder:selectablefield:JSONPath=`.spec.owner.kind`
// +kubebuilder:selectablefield:JSONPath=`.spec.owner.name`
// +kubebuilder:printcolumn:name="IP",type=string,JSONPath=`.spec.ips[0]`
// +kubebuilder:printcolumn:name="NODE",type=string,JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="READY",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="REASON",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="POD",type=string,JSONPath=`.spec.podName`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="IP2",type=string,priority=1,JSONPath=`.spec.ips[1]`
// +kubebuilder:printcolumn:name="KIND",type=string,priority=1,JSONPath=`.spec.owner.kind`
// +kubebuilder:printcolumn:name="WORKLOAD",type=string,priority=1,JSONPath=`.spec.owner.name`
// +kubebuilder:printcolumn:name="FAILOVER",type=string,priority=1,JSONPath=`.spec.failover`
// +kubebuilder:printcolumn:name="EXPIRES",type=string,priority=1,JSONPath=`.status.expiresAt`
// +kubebuilder:validation:XValidation:rule="(has(self.spec.assignedTo) && self.spec.assignedTo == 'Slot') || self.metadata.name == self.spec.podName",fieldPath=".spec.podName",message="must be the name of the FixedIP, except for a slot",reason=FieldValueInvalid
type FixedIP struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the reservation. Everything that a backup has to preserve is in spec.
	// +required
	Spec FixedIPSpec `json:"spec"`
	// status is the last observed state of the reservation.
	// +optional
	Status FixedIPStatus `json:"status,omitempty"`
}

// FixedIPSpec is the reservation.
//
// The rules for ips are on the whole spec, because rules on a field do not run if the field is
// removed.
//
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.ips) || oldSelf.ips.size() == 0 || (has(self.ips) && oldSelf.ips.all(a, a in self.ips))",fieldPath=".ips",message="an address is immutable once set; delete the FixedIP and its pod to get another address",reason=FieldValueForbidden
// +kubebuilder:validation:XValidation:rule="(has(self.assignedTo) && self.assignedTo == 'Slot') == (has(oldSelf.assignedTo) && oldSelf.assignedTo == 'Slot')",fieldPath=".assignedTo",message="immutable",reason=FieldValueForbidden
// +kubebuilder:validation:XValidation:rule="self.podName == oldSelf.podName || (has(self.assignedTo) && self.assignedTo == 'Slot')",fieldPath=".podName",message="immutable, except for a slot",reason=FieldValueForbidden
type FixedIPSpec struct {
	// ips are the addresses, at most one of each family, in canonical form. An address cannot be changed:
	// delete the FixedIP and then its pod to get another one. An address of a missing family can be added.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self.all(a, isIP(a))",message="each must be a valid IP address",reason=FieldValueInvalid
	// +kubebuilder:validation:XValidation:rule="self.all(a, !isIP(a) || ip.isCanonical(a))",message="each must be in canonical form, such as 10.240.1.10 or fd00:240::1:a",reason=FieldValueInvalid
	// +kubebuilder:validation:XValidation:rule="self.all(a, isIP(a)) ? (self.filter(a, ip(a).family() == 4).size() <= 1 && self.filter(a, ip(a).family() == 6).size() <= 1) : true",message="at most one address of each family",reason=FieldValueInvalid
	IPs []string `json:"ips,omitempty"`

	// nodeName is the node whose pool has the addresses.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$`
	NodeName string `json:"nodeName,omitempty"`

	// owner is the workload of the pod that the addresses are reserved for. For a pod without a controller it is
	// the pod itself (apiVersion v1, kind Pod).
	// +required
	Owner OwnerReference `json:"owner"`

	// assignedTo defines which pods get the addresses. PodName: the pods with the name podName. Slot: the addresses are a slot of
	// the workload; when the pod podName has stopped, the next pod takes them over. Immutable.
	// +optional
	// +kubebuilder:default=PodName
	AssignedTo Assignee `json:"assignedTo,omitempty"`

	// podName is the pod in this namespace that the addresses are reserved for. For a slot, it is the pod that has
	// the addresses or had them last, and it can be changed; otherwise it is immutable.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	PodName string `json:"podName"`

	// reclaim defines when the addresses are released automatically. The controller copies it from the
	// annotations of the workload while the workload exists.
	// +optional
	// +kubebuilder:default={}
	Reclaim ReclaimPolicy `json:"reclaim,omitempty,omitzero"`

	// failover defines what happens to a pod whose node cannot take it: it waits, it moves to another node
	// with its addresses, or it gets other addresses there. If empty, the setting failover of the
	// configuration applies. The controller copies it from the annotations of the workload while the workload
	// exists.
	// +optional
	Failover Failover `json:"failover,omitempty"`
}

// Assignee defines which pods get the addresses of a FixedIP.
// +kubebuilder:validation:Enum=PodName;Slot
type Assignee string

const (
	// PodName gives the addresses to the pods with the name podName, one after the other.
	PodName Assignee = "PodName"
	// Slot is for workloads whose pods have no stable names: when the pod that has the addresses has stopped, the next
	// pod of the workload takes them over.
	Slot Assignee = "Slot"
)

// Failover defines what happens to a pod whose node cannot take it. Migrate and Reassign take effect only
// when the previous pod on that node has provably stopped.
// +kubebuilder:validation:Enum=Wait;Migrate;Reassign
type Failover string

const (
	// Wait keeps the pod Pending until the node can take it.
	Wait Failover = "Wait"
	// Migrate moves the pod to another node with its addresses. The routing of the cluster has to carry
	// single addresses.
	Migrate Failover = "Migrate"
	// Reassign moves the pod to another node, where it gets other addresses.
	Reassign Failover = "Reassign"
)

// Retention defines whether an address is kept when its workload is deleted or scaled down. It uses the values of the
// persistentVolumeClaimRetentionPolicy of a StatefulSet.
// +kubebuilder:validation:Enum=Delete;Retain
type Retention string

const (
	// Delete releases the address.
	Delete Retention = "Delete"
	// Retain keeps the address for a pod with the same name.
	Retain Retention = "Retain"
)

// ReclaimPolicy defines when addresses are released automatically.
type ReclaimPolicy struct {
	// whenDeleted applies if the workload is deleted.
	// +optional
	// +kubebuilder:default=Delete
	WhenDeleted Retention `json:"whenDeleted,omitempty"`
	// whenScaled applies if the workload is scaled down and no longer expects the pod.
	// +optional
	// +kubebuilder:default=Retain
	WhenScaled Retention `json:"whenScaled,omitempty"`
	// ttlSeconds delays the release by that number of seconds. The time begins when the controller observes that
	// whenDeleted or whenScaled requires the release, and ends without a release if the workload expects the pod again.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9223372036
	TTLSeconds int64 `json:"ttlSeconds,omitempty"`
}

// OwnerReference names the workload of an identity, in the namespace of the FixedIP. The patterns are those
// of Kubernetes for such names, because pool entries join them with slashes.
type OwnerReference struct {
	// apiVersion of the workload, such as apps/v1.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	APIVersion string `json:"apiVersion"`
	// kind of the workload, such as StatefulSet.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z]([-A-Za-z0-9]*[A-Za-z0-9])?$`
	Kind string `json:"kind"`
	// name of the workload.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Name string `json:"name"`
	// uid of the workload. If the workload is created again with the same name, it takes the reservation over,
	// and the controller updates the uid.
	// +optional
	UID types.UID `json:"uid,omitempty"`
}

// Conditions that the controller of FixedIPs writes.
const (
	// ConditionReady summarizes the others: True if the addresses are reserved for the pod and no problem is known.
	// The reason is then ReasonInUse or ReasonReserved. Otherwise it is ReasonReleasing, ReasonNoAddress, or the reason of
	// the problem.
	ConditionReady = "Ready"
	// ConditionAllocated is True if every address of the FixedIP has its entry in the pool of a node, so that no other
	// pod can get it. If it is False, the message names the blocker and what helps; the reason is SubnetNotFound if no node
	// has the subnet of the addresses. It is Unknown with ReasonNoHome until the controller has been able to judge it.
	ConditionAllocated = "Allocated"
	// ReasonNoHome is the reason of ConditionAllocated until the controller has judged the addresses for the first time. The
	// controller does not judge them while the FixedIP has no addresses or is being deleted, or while they are moving.
	ReasonNoHome = "NoHome"
)

// Reasons of ConditionReady that are not the reason of a problem.
const (
	// ReasonInUse means that a pod bound to the node uses the addresses.
	ReasonInUse = "InUse"
	// ReasonReserved means that the addresses are reserved and no pod uses them.
	ReasonReserved = "Reserved"
	// ReasonReleasing means that the FixedIP is being deleted. Its addresses are released when the pod is gone.
	ReasonReleasing = "Releasing"
	// ReasonNoAddress means that the FixedIP has no addresses yet.
	ReasonNoAddress = "NoAddress"
)

// FixedIPStatus is the last observed state of a FixedIP.
type FixedIPStatus struct {
	// observedGeneration is the metadata.generation of the FixedIP that the condition Ready describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// podUID is the UID of the pod that uses the addresses.
	// +optional
	PodUID types.UID `json:"podUID,omitempty"`
	// expiresAt is the time at which the addresses are released, unless the workload expects the pod again.
	// +optional
	ExpiresAt *metav1.Time `json:"expiresAt,omitempty"`
	// vacatedBy is the name of the last pod of a slot, set when that pod has stopped: it is deleted or has ended, and
	// the agent of its node has reported that no pod uses the addresses. Another pod of the workload may then take over
	// the slot.
	// +optional
	VacatedBy string `json:"vacatedBy,omitempty"`
	// movableFor is the UID of a pod that its node cannot take, once the agent of that node has reported that no
	// pod uses the addresses. The pod may then take them to another node. The field stays as long as the pod exists, and
	// after that until the addresses are at home again. It is also set to the last podUID while the addresses, which no
	// pod uses now, may be away from their home: that pod may have been deleted by force, and still run.
	// +optional
	MovableFor types.UID `json:"movableFor,omitempty"`
	// mismatchPodUID is the UID of the pod that the condition AsReserved is about. It is set only while that
	// condition is False.
	// +optional
	MismatchPodUID types.UID `json:"mismatchPodUID,omitempty"`
	// conditions are the state of the reservation: Ready summarizes Allocated, SubnetAvailable, Exclusive and AsReserved.
	// All of them exist from the first status on, and True means in each that no problem is known.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ConditionSubnetAvailable is True if the subnet of the addresses belongs to exactly one node. The pool of that node
// decides which pod has the addresses.
const ConditionSubnetAvailable = "SubnetAvailable"

// Reasons of ConditionSubnetAvailable.
const (
	// ReasonNodeGone means that the node of the subnet has been gone since lastTransitionTime. The grace period before
	// another node may inherit the subnet begins at that time.
	ReasonNodeGone = "NodeGone"
	// ReasonInheritancePending means that the node of the subnet does not exist, and another node inherits the subnet after
	// the grace period. The scheduler nominates the pod to a node that can run it, and the controller chooses one of these nodes.
	ReasonInheritancePending = "InheritancePending"
	// ReasonSubnetOverlap means that the subnets of two nodes overlap.
	ReasonSubnetOverlap = "SubnetOverlap"
	// ReasonSubnetAssigned means that the subnet belongs to a node again.
	ReasonSubnetAssigned = "SubnetAssigned"
)

// Conditions that are True as long as no problem is known. The controller of FixedIPs sets them with the reason
// ReasonNothingKnown when it first sees a FixedIP. lastTransitionTime also changes with the reason.
const (
	// ConditionExclusive is False if another pod, FixedIP or pool has one of the addresses too.
	ConditionExclusive = "Exclusive"
	// ConditionAsReserved is False if the pod runs with other addresses than the FixedIP names, or has no CiliumEndpoint.
	ConditionAsReserved = "AsReserved"
	// ReasonNothingKnown is the reason of a condition whose problem has never been observed.
	ReasonNothingKnown = "NothingKnown"
)

// FixedIPList is a list of FixedIPs.
//
// +kubebuilder:object:root=true
type FixedIPList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []FixedIP `json:"items"`
}
