// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package v1 contains FixedIPArgs of kubescheduler.config.k8s.io/v1, the version that users write.
//
// It has types, defaults and the conversion to the internal version only.
//
// +kubebuilder:object:generate=true
package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FixedIPArgs are the arguments of the FixedIP plugin.
//
// +kubebuilder:object:root=true
type FixedIPArgs struct {
	metav1.TypeMeta `json:",inline"`

	// ipFamilies are the families in which every pod with a fixed address has one: IPv4, IPv6 or both. They have to be
	// the families of Cilium. Default: [IPv4].
	IPFamilies []string `json:"ipFamilies,omitempty"`
	// claimTimeout limits the time from the choice of an address until the scheduler sees its entry in the pool. A pod
	// whose claim takes longer is retried. Default: 10s.
	ClaimTimeout *metav1.Duration `json:"claimTimeout,omitempty"`
	// claimQPS limits the requests per second of the plugin to the API server. Default: 100.
	ClaimQPS *float32 `json:"claimQPS,omitempty"`
	// claimBurst is the number of requests that may exceed claimQPS at once. Default: 200.
	ClaimBurst *int32 `json:"claimBurst,omitempty"`
	// failover is the default policy for pods whose node cannot take them: Wait, Migrate (to another node with the same
	// addresses) or Reassign (to another node with other addresses). The controller's --failover has to be the same.
	// Default: Wait.
	Failover string `json:"failover,omitempty"`
	// allowAddressMigration allows addresses to move to a node outside their subnet. Set it to true if Cilium runs in
	// tunnel mode or addresses are advertised one by one. With native routing by podCIDR such an address could not be
	// reached. Default: false, so no address migrates.
	MovableAddresses *bool `json:"allowAddressMigration,omitempty"`
	// agentReportTimeout is the time within which the agent of a ready node reports an address that it gave to a pod.
	// Until then a force-deleted pod may still run, so its address is given neither to another node nor to the next pod
	// of its workload. After an adoption the next pod with the name waits for a report at most twice as long. It has to
	// be longer than --ipam-cilium-node-update-rate of the agents, and than the time until an unreachable node becomes
	// NotReady. Default: 1m.
	AgentSilence *metav1.Duration `json:"agentReportTimeout,omitempty"`
	// strictNodes is a label selector for strict nodes, on which every pod gets an owned entry. Empty selects none. The
	// controller's --strict-nodes has to be the same. Default: fixedip.io/strict=true.
	StrictNodes *string `json:"strictNodes,omitempty"`
	// workloads are further kinds of workloads whose pods may have fixed addresses. StatefulSets are always included; an
	// element for them replaces their default. All profiles and the controller (--workload-kind) have to have the same.
	Workloads []WorkloadKind `json:"workloads,omitempty"`
}

// WorkloadKind is a kind of workload whose pods may have fixed addresses.
type WorkloadKind struct {
	// apiGroup of the kind, without a version: apps.
	APIGroup string `json:"apiGroup,omitempty"`
	// kind of the workload: Deployment.
	Kind string `json:"kind"`
	// identity is PodName if pods return with the same name. Otherwise it is Slot: the workload has a set of addresses,
	// and a new pod takes over the slot of a pod that has stopped.
	Identity string `json:"identity"`
	// enabled is ByAnnotation if pods have a fixed address only with the annotation fixedip.io/enabled: "true", and
	// ByDefault if all pods have one except with "false". Default: ByAnnotation.
	Enabled string `json:"enabled,omitempty"`
}
