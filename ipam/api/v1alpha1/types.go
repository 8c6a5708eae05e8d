package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Finalizer keeps a FixedIP until its address was taken back from the pool of its node.
const Finalizer = "fixedip.io/pool-entry"

// AnnotationUID holds the metadata.uid of a FixedIP. The controller writes it soon after the FixedIP was created. A
// value that differs from metadata.uid therefore says that the FixedIP was restored from a backup.
const AnnotationUID = "fixedip.io/uid"

// FixedIP is the record of the addresses that one identity keeps for life. It has the name of the
// pod, or, where the workload's pods have no lasting names, that of the workload and an address. The controller makes it from the claim that the scheduler wrote into a CiliumNode; deleting
// it gives the addresses back once the pod is gone.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=fip,categories=all
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="IPS",type=string,JSONPath=`.spec.ips`
// +kubebuilder:printcolumn:name="NODE",type=string,JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="PHASE",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="OWNER",type=string,JSONPath=`.spec.owner.name`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="(has(self.spec.slot) && self.spec.slot) || self.metadata.name == self.spec.podName",fieldPath=".spec.podName",message="must be the name of the FixedIP, except for a slot",reason=FieldValueInvalid
type FixedIP struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the reservation. All of it that must survive a backup is here and not in status.
	// +required
	Spec FixedIPSpec `json:"spec"`
	// status is what the controller last saw of the reservation.
	// +optional
	Status FixedIPStatus `json:"status,omitempty"`
}

// FixedIPSpec is the reservation.
//
// The rules on ips and slot stand here and not at the fields, where removing a field would pass them by.
//
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.ips) || oldSelf.ips.size() == 0 || (has(self.ips) && oldSelf.ips.all(a, a in self.ips))",fieldPath=".ips",message="an address is immutable once set; delete the FixedIP and its pod to get another address",reason=FieldValueForbidden
// +kubebuilder:validation:XValidation:rule="(has(self.slot) && self.slot) == (has(oldSelf.slot) && oldSelf.slot)",fieldPath=".slot",message="immutable",reason=FieldValueForbidden
// +kubebuilder:validation:XValidation:rule="self.podName == oldSelf.podName || (has(self.slot) && self.slot)",fieldPath=".podName",message="immutable, but for a slot",reason=FieldValueForbidden
type FixedIPSpec struct {
	// ips are the addresses, at most one of each family, in canonical form. Once set an address never
	// changes: delete the FixedIP and then its pod to have another. One of a family that is missing
	// may be added.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self.all(a, isIP(a))",message="each must be a valid IP address",reason=FieldValueInvalid
	// +kubebuilder:validation:XValidation:rule="self.all(a, !isIP(a) || ip.isCanonical(a))",message="each must be in canonical form, such as 10.240.1.10 or fd00:240::1:a",reason=FieldValueInvalid
	// +kubebuilder:validation:XValidation:rule="self.all(a, isIP(a)) ? (self.filter(a, ip(a).family() == 4).size() <= 1 && self.filter(a, ip(a).family() == 6).size() <= 1) : true",message="at most one address of each family",reason=FieldValueInvalid
	IPs []string `json:"ips,omitempty"`

	// nodeName is the node whose pool carries the addresses now.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$`
	NodeName string `json:"nodeName,omitempty"`

	// owner is the workload that the addresses are kept for.
	// +required
	Owner OwnerReference `json:"owner"`

	// slot tells that the workload's pods have no lasting names: the addresses are one of its places,
	// and a new pod takes the place of one that is gone. It can't be changed.
	// +optional
	Slot bool `json:"slot,omitempty"`

	// podName is the pod that has the addresses, or had them last, in this namespace. Only that of a
	// slot can be changed.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	PodName string `json:"podName"`

	// reclaim says when the addresses go back by themselves. The controller takes it from the
	// annotations of the workload as long as there is one.
	// +optional
	// +kubebuilder:default={}
	Reclaim ReclaimPolicy `json:"reclaim,omitempty,omitzero"`

	// failover says what becomes of a pod whose node can't take it: it waits, it takes its addresses
	// along to another node, or it gets others there. Empty: as the arguments of the scheduler say.
	// The controller takes it from the annotations of the workload as long as there is one.
	// +optional
	Failover Failover `json:"failover,omitempty"`
}

// Failover says what becomes of a pod whose node can't take it. Nothing but Wait happens before it is
// sure that the pod's predecessor on that node does not run any more.
// +kubebuilder:validation:Enum=Wait;Migrate;Reassign
type Failover string

const (
	// Wait: the pod waits for the node.
	Wait Failover = "Wait"
	// Migrate: the pod goes to another node and keeps its addresses. The cluster's routing has to
	// carry single addresses.
	Migrate Failover = "Migrate"
	// Reassign: the pod goes to another node and gets other addresses there.
	Reassign Failover = "Reassign"
)

// Retention says what becomes of an address whose pod is gone, in the words of the
// persistentVolumeClaimRetentionPolicy of a StatefulSet.
// +kubebuilder:validation:Enum=Delete;Retain
type Retention string

const (
	// Delete: the address goes back.
	Delete Retention = "Delete"
	// Retain: the address is kept for a pod that comes back under the name.
	Retain Retention = "Retain"
)

// ReclaimPolicy says when addresses go back.
type ReclaimPolicy struct {
	// whenDeleted is for a workload that is deleted.
	// +optional
	// +kubebuilder:default=Delete
	WhenDeleted Retention `json:"whenDeleted,omitempty"`
	// whenScaled is for a pod that a smaller number of replicas leaves out.
	// +optional
	// +kubebuilder:default=Retain
	WhenScaled Retention `json:"whenScaled,omitempty"`
	// ttl is how long an address that is to go back is kept for a pod that comes back under the
	// name after all. It is counted from the moment when the controller has seen the pod gone.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must be a duration such as 30m or 24h",reason=FieldValueInvalid
	TTL metav1.Duration `json:"ttl,omitempty,omitzero"`
}

// OwnerReference names the workload of an identity, in the namespace of the FixedIP. The patterns are those of
// Kubernetes for such names: pool entries put them together with slashes.
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
	// uid of the workload. A workload that is made anew under the same name while the reservation
	// stands takes it over, and this follows.
	// +optional
	UID types.UID `json:"uid,omitempty"`
}

// Phase is the state of a reservation in one word.
// +kubebuilder:validation:Enum=Reserved;InUse;Releasing
type Phase string

const (
	// PhaseReserved: the address is kept and no pod has it now.
	PhaseReserved Phase = "Reserved"
	// PhaseInUse: a pod that is bound to the node has the address.
	PhaseInUse Phase = "InUse"
	// PhaseReleasing: the FixedIP is being deleted; its address goes back when the pod is gone.
	PhaseReleasing Phase = "Releasing"
)

// ConditionProjected: every address of the record has its entry in the pool of a node, so that nobody
// else can have it. Where not, the message says what is in the way, and who.
const ConditionProjected = "Projected"

// FixedIPStatus is what the controller last saw.
type FixedIPStatus struct {
	// phase is the state in one word.
	// +optional
	Phase Phase `json:"phase,omitempty"`
	// podUID is the pod that has the addresses now.
	// +optional
	PodUID types.UID `json:"podUID,omitempty"`
	// expiresAt is when the addresses go back, unless a pod comes back under the name before.
	// +optional
	ExpiresAt *metav1.Time `json:"expiresAt,omitempty"`
	// departed is the pod that had the addresses of a slot last, while none has them.
	// +optional
	Departed *Departure `json:"departed,omitempty"`
	// conditions say what is out of order, each in words.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Departure is a pod that is gone.
type Departure struct {
	// podName is its name.
	// +required
	PodName string `json:"podName"`
	// at is a time at which the API server did not have it any more, in whole seconds, rounded up. A scheduler
	// that did not see it go waits for the word of the node's agent from then on, and not from its own start.
	// +required
	At metav1.Time `json:"at"`
	// nodeName is the node of the addresses that are listed.
	// +optional
	NodeName string `json:"nodeName,omitempty"`
	// listed are the addresses that the node's agent listed as used at that time. Once it lists them no more, the
	// pod does not run any more.
	// +optional
	// +listType=set
	Listed []string `json:"listed,omitempty"`
}

// ConditionHomed is the condition that tells whether the subnet of the addresses has a node, and one alone:
// the pool of that node decides who has them. It is written when that is not so for the first time.
const ConditionHomed = "Homed"

// The reasons of ConditionHomed.
const (
	// ReasonNodeGone: the node is gone that had the subnet. Since when, the condition's
	// lastTransitionTime says; the hold time before another node may have it is counted from then.
	ReasonNodeGone = "NodeGone"
	// ReasonSubnetOverlap: the subnets of two nodes overlap.
	ReasonSubnetOverlap = "SubnetOverlap"
	// ReasonSubnetAssigned: the subnet has a node again.
	ReasonSubnetAssigned = "SubnetAssigned"
)

// Conditions of what was found wrong. One that was never found is not there. The time of each is that of
// its last change, of the reason too.
const (
	// ConditionConflict: somebody else has one of the addresses, holds it or offers it.
	ConditionConflict = "Conflict"
	// ConditionMismatch: the pod does not run with what is kept for it.
	ConditionMismatch = "Mismatch"
)

// FixedIPList is a list of FixedIPs.
//
// +kubebuilder:object:root=true
type FixedIPList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []FixedIP `json:"items"`
}
