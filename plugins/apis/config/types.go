// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package config contains FixedIPArgs, the plugin's arguments in a KubeSchedulerConfiguration.
//
// The package contains the type, its defaults and its validation. Importing the package registers the type with the schemes
// that kube-scheduler uses to read its configuration.
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

	// ipFamilies are the IP families of fixed addresses: IPv4, IPv6 or both. Every pod with a fixed address gets one address of
	// each family. They have to be the families that the Cilium agents of the cluster assign. Default: [IPv4].
	IPFamilies []string `json:"ipFamilies,omitempty"`
	// claimTimeout is the time limit for writing a claim into the pool of a CiliumNode. A pod whose claim takes longer is
	// tried again. Default: 10s.
	ClaimTimeout *metav1.Duration `json:"claimTimeout,omitempty"`
	// claimQPS is the maximum number of requests per second with which the plugin reads and writes CiliumNodes. Every
	// profile has to have the same value. Default: 200.
	ClaimQPS *float32 `json:"claimQPS,omitempty"`
	// claimBurst is the maximum number of these requests at once. Every profile has to have the same value. Default:
	// 400.
	ClaimBurst *int32 `json:"claimBurst,omitempty"`
	// failover is the policy for pods whose node cannot take them, unless their workload defines another one: Wait, Migrate (to
	// another node, with the same addresses) or Reassign (to another node, with other addresses). It has to equal the flag
	// --failover of the controller. Default: Wait.
	Failover string `json:"failover,omitempty"`
	// allowAddressMigration allows an address to migrate to a node other than its home node, whose subnet contains the
	// address. Set it to true if Cilium runs in tunnel mode, or if addresses are advertised one by one. With native routing by
	// subnets, a migrated address would not be reachable. Default: false.
	AllowAddressMigration bool `json:"allowAddressMigration,omitempty"`
	// strictNodes is the label selector of strict nodes; empty selects no node. Every pod that this scheduler places on a
	// strict node gets a pool entry of its own, whether or not it has a fixed address. It has to equal the flag --strict-nodes
	// of the controller. Default: fixedip.io/strict=true.
	StrictNodes *string `json:"strictNodes,omitempty"`
	// workloads are further kinds of workloads whose pods may have fixed addresses. The pods of StatefulSets have fixed
	// addresses by default; an element for StatefulSets replaces that default. Every profile has to have the same value, and
	// the value has to equal the flag --workload-kind of the controller.
	Workloads []identity.Kind `json:"workloads,omitempty"`
}
