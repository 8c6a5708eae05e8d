// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package ciliumconfigmap reads the settings of Cilium that fixedip depends on from Cilium's ConfigMap.
//
// Both programs read it once, when they start. Package configuration decides what the settings mean.
package ciliumconfigmap
