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
	// ClaimTimeout limits the time from the choice of an address until its entry is in the pool.
	ClaimTimeout metav1.Duration
	// ClaimQPS and ClaimBurst limit the requests of the plugin to the API server.
	ClaimQPS   float32
	ClaimBurst int32
	// Failover is the default failover policy: Wait, Migrate or Reassign.
	Failover string
	// MovableAddresses is true if the routing of the cluster carries single addresses, so that addresses may migrate.
	MovableAddresses bool
	// AgentSilence is the time within which the agent of a ready node reports an address that it gave to a pod.
	AgentSilence metav1.Duration
	// StrictNodes is a label selector for strict nodes; empty selects none.
	StrictNodes string
	// Workloads are further kinds of workloads whose pods may have fixed addresses; an element for StatefulSets replaces
	// their default. All profiles have the same.
	Workloads []identity.Kind
}
