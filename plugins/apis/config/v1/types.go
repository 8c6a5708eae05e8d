// Package v1 is the form of the plugin's arguments that people write:
// kubescheduler.config.k8s.io/v1, kind FixedIPArgs.
//
// It holds types, defaults and their conversion to the internal form.
//
// +kubebuilder:object:generate=true
package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FixedIPArgs are the arguments of the plugin FixedIP.
//
// +kubebuilder:object:root=true
type FixedIPArgs struct {
	metav1.TypeMeta `json:",inline"`

	// ipFamilies are the families in which every fixed pod has an address: IPv4, IPv6 or both.
	// Default: [IPv4]. It has to be what the cluster's Cilium agents hand out.
	IPFamilies []string `json:"ipFamilies,omitempty"`
	// claimTimeout bounds the time from the decision for an address to its entry in the pool of
	// the CiliumNode, as the scheduler's own watch shows it. A pod whose claim takes longer is
	// tried again. Default: 10s.
	ClaimTimeout *metav1.Duration `json:"claimTimeout,omitempty"`
	// claimQPS is how many requests a second the plugin may send to the API server. Default: 100.
	ClaimQPS *float32 `json:"claimQPS,omitempty"`
	// claimBurst is how many requests the plugin may send at once. Default: 200.
	ClaimBurst *int32 `json:"claimBurst,omitempty"`
	// failover is what becomes of a pod whose node can't take it, where its workload says nothing:
	// Wait, Migrate (to another node, with its addresses) or Reassign (to another node, with others).
	// Default: Wait. The controller's flag of the same name has to say the same.
	Failover string `json:"failover,omitempty"`
	// allowAddressMigration tells that an address may live on another node than the one whose subnet it is
	// in. True where Cilium runs in tunnel mode, or where addresses are advertised one by one; false
	// under native routing by subnets, where an address that moved could not be reached. Default:
	// false, and then nothing migrates.
	MovableAddresses *bool `json:"allowAddressMigration,omitempty"`
	// agentReportTimeout is how long the agent of a ready node may be silent about an address that it has given
	// to a pod: until then a pod that was deleted by force may run on without anybody saying so, and its
	// address goes to no other node, nor to the next pod of its workload. The next pod of a name waits twice as
	// long at most for an agent that has not reported since an address that was for anybody became that of the name.
	// It has to be longer than the agents' --ipam-cilium-node-update-rate, and than it takes until a node that
	// is not heard of counts as not ready. Default: 1m.
	AgentSilence *metav1.Duration `json:"agentReportTimeout,omitempty"`
	// strictNodes is a label selector. On the nodes that it chooses every pod that this scheduler
	// places gets an address of its own, fixed or not; empty: there are none. It has to say what the
	// controller's --strict-nodes says. Default: fixedip.io/strict=true.
	StrictNodes *string `json:"strictNodes,omitempty"`
	// workloads are more kinds of workloads whose pods may have fixed addresses. StatefulSets are
	// among them always; an element for them says otherwise when they do. Every profile has to have
	// the same, and so has the controller (--workload-kind).
	Workloads []WorkloadKind `json:"workloads,omitempty"`
}

// WorkloadKind is a kind of workload whose pods may have fixed addresses.
type WorkloadKind struct {
	// apiGroup of the kind, without a version: apps.
	APIGroup string `json:"apiGroup,omitempty"`
	// kind of the workload: Deployment.
	Kind string `json:"kind"`
	// identity is PodName where a pod comes back under the name that it had, and Slot where names say
	// nothing: the workload then has a set of addresses, and a new pod takes over that of one that
	// is gone.
	Identity string `json:"identity"`
	// enabled is ByAnnotation where a pod has a fixed address that is annotated fixedip.io/enabled:
	// "true", and ByDefault where one has that isn't annotated "false". Default: ByAnnotation.
	Enabled string `json:"enabled,omitempty"`
}
