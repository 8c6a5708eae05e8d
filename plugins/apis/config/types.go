// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package config contains FixedIPArgs, the plugin's arguments in a KubeSchedulerConfiguration.
//
// It has the type, its defaults and its validation. Importing it registers the type with the schemes that
// kube-scheduler uses to read its configuration.
//
// +kubebuilder:object:generate=true
package config

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/core/identity"
)

// FixedIPArgs are the arguments of the FixedIP plugin, in kubescheduler.config.k8s.io/v1. A field is nil only if it is
// absent and the defaults are not set yet.
//
// +kubebuilder:object:root=true
type FixedIPArgs struct {
	metav1.TypeMeta `json:",inline"`

	// ipFamilies are the families in which every pod with a fixed address has one: IPv4, IPv6 or both. They have to be
	// those that the cluster's Cilium agents assign. Default: [IPv4].
	IPFamilies []string `json:"ipFamilies,omitempty"`
	// claimTimeout bounds the time in which the scheduler writes a claim into the pool of a CiliumNode. A pod whose claim
	// takes longer is tried again. Default: 10s.
	ClaimTimeout *metav1.Duration `json:"claimTimeout,omitempty"`
	// claimQPS is how many requests per second the plugin may send to the API server. Every profile has to have the same
	// value. Default: 100.
	ClaimQPS *float32 `json:"claimQPS,omitempty"`
	// claimBurst is how many requests the plugin may send at once. Every profile has to have the same value. Default: 200.
	ClaimBurst *int32 `json:"claimBurst,omitempty"`
	// failover is the policy for pods whose node cannot take them, if their workload sets none: Wait, Migrate (to another
	// node, with their addresses) or Reassign (to another node, with other addresses). It has to be the same as the
	// controller's flag of that name. Default: Wait.
	Failover string `json:"failover,omitempty"`
	// allowAddressMigration tells that an address may be on another node than the one whose subnet it is in. Set it to
	// true if Cilium runs in tunnel mode, or if addresses are advertised one by one. With native routing by subnets an
	// address that migrated could not be reached. Default: false, and then nothing migrates.
	AllowAddressMigration bool `json:"allowAddressMigration,omitempty"`
	// strictNodes is a label selector. On the nodes that it selects, every pod that this scheduler places gets an address
	// of its own, fixed or not; empty: there are no such nodes. It has to be the same as the controller's --strict-nodes.
	// Default: fixedip.io/strict=true.
	StrictNodes *string `json:"strictNodes,omitempty"`
	// workloads are more kinds of workloads whose pods may have fixed addresses. StatefulSets are always among them; an
	// element for StatefulSets says otherwise when their pods have fixed addresses. Every profile has to have the same
	// value, and so has the controller (--workload-kind).
	Workloads []identity.Kind `json:"workloads,omitempty"`
}
