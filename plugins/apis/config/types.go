// Package config is the internal form of the plugin's arguments in a KubeSchedulerConfiguration.
//
// It holds types and their validation, nothing that acts on them.
//
// +kubebuilder:object:generate=true
package config

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/core/identity"
)

// FixedIPArgs are the arguments of the plugin FixedIP.
//
// +kubebuilder:object:root=true
type FixedIPArgs struct {
	metav1.TypeMeta

	// IPFamilies are the families in which every fixed pod has an address: IPv4, IPv6 or both.
	IPFamilies []string
	// ClaimTimeout bounds the time from the decision for an address to its entry in the pool.
	ClaimTimeout metav1.Duration
	// ClaimQPS is how many requests a second the plugin may send to the API server, ClaimBurst how
	// many at once.
	ClaimQPS   float32
	ClaimBurst int32
	// Failover is what becomes of a pod whose node can't take it, where its workload says nothing:
	// Wait, Migrate or Reassign.
	Failover string
	// MovableAddresses tells that an address may live on another node than the one whose subnet it is
	// in: the cluster's routing carries single addresses.
	MovableAddresses bool
	// AgentSilence is how long the agent of a ready node may be silent about an address that it has given
	// to a pod.
	AgentSilence metav1.Duration
	// StrictNodes is a label selector. On the nodes that it chooses every pod that the plugin's
	// scheduler places gets an address of its own, fixed or not; empty: there are none.
	StrictNodes string
	// Workloads are the kinds of workloads, beside StatefulSets or instead of what is said of those
	// otherwise, whose pods may have fixed addresses. All profiles have the same.
	Workloads []identity.Kind
}
