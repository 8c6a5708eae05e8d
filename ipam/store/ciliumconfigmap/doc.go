// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package ciliumconfigmap reads the settings of Cilium that fixedip depends on from Cilium's ConfigMap.
//
// The controller always reads the ConfigMap when it starts. The scheduler reads it only if its configuration leaves out a
// setting whose default depends on Cilium. Package configuration decides what the settings mean.
package ciliumconfigmap
