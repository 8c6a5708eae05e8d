// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package config contains FixedIPArgs, the plugin's arguments in a KubeSchedulerConfiguration.
//
// The package contains the type, its defaults and its validation. Importing the package registers the type with the schemes
// that kube-scheduler uses to read its configuration.
//
// +kubebuilder:object:generate=true
package config

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// FixedIPArgs are the arguments of the FixedIP plugin, in kubescheduler.config.k8s.io/v1. A field is nil only if it is
// absent and the defaults are not set yet.
//
// +kubebuilder:object:root=true
type FixedIPArgs struct {
	metav1.TypeMeta `json:",inline"`

	// configuration is the path of the file with the settings that the scheduler shares with the controller, of kind
	// FixedIPConfiguration. Every profile has to name the same file. Default: /etc/fixedip/config.yaml.
	Configuration string `json:"configuration,omitempty"`
	// ciliumConfig is the ConfigMap of Cilium, as namespace/name, that settings are adapted to. It has to be the one that the
	// controller reads (--cilium-config), and the same in every profile. Default: kube-system/cilium-config.
	CiliumConfig string `json:"ciliumConfig,omitempty"`
	// claimTimeout is the time limit for writing a claim into the pool of a CiliumNode. A pod whose claim takes longer is
	// tried again. Default: 10s.
	ClaimTimeout *metav1.Duration `json:"claimTimeout,omitempty"`
	// claimQPS is the maximum number of requests per second with which the plugin reads and writes CiliumNodes. Every
	// profile has to have the same value. Default: 200.
	ClaimQPS *float32 `json:"claimQPS,omitempty"`
	// claimBurst is the maximum number of these requests at once. Every profile has to have the same value. Default:
	// 400.
	ClaimBurst *int32 `json:"claimBurst,omitempty"`
}
