// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package ciliumconfigmap reads the settings of Cilium that fixedip depends on from Cilium's ConfigMap.
//
// The controller reads the ConfigMap when it starts, and the scheduler if a setting depends on it. Package configuration
// decides what the settings mean.
package ciliumconfigmap
