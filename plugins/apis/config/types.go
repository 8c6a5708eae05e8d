// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package config contains the internal version of FixedIPArgs, the plugin's arguments in a KubeSchedulerConfiguration.
//
// It has types and validation only.
//
// +kubebuilder:object:generate=true
package config

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/core/identity"
)

// FixedIPArgs are the arguments of the FixedIP plugin.
//
// +kubebuilder:object:root=true
type FixedIPArgs struct {
	metav1.TypeMeta

	// IPFamilies are the families in which every pod with a fixed address has one: IPv4, IPv6 or both.
	IPFamilies []string
	// ClaimTimeout bounds the time in which a claim is written.
	ClaimTimeout metav1.Duration
	// ClaimQPS is how many requests per second the plugin may send to the API server, ClaimBurst how many at once. All
	// profiles have the same.
	ClaimQPS   float32
	ClaimBurst int32
	// Failover is the policy for pods whose node cannot take them, if their workload sets none: Wait, Migrate or Reassign.
	Failover string
	// AllowAddressMigration tells that an address may be on another node than the one whose subnet it is in: the cluster's
	// routing carries single addresses.
	AllowAddressMigration bool
	// StrictNodes is a label selector. On the nodes that it selects, every pod that the plugin's scheduler places gets an
	// address of its own, fixed or not; empty: there are no such nodes.
	StrictNodes string
	// Workloads are the kinds of workloads, besides StatefulSets or instead of their defaults, whose pods may have fixed
	// addresses. All profiles have the same.
	Workloads []identity.Kind
}
