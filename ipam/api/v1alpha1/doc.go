// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 contains the API group fixedip.io/v1alpha1.
//
// It has types and their registration. Its only logic is FixedIP.LabelFromSpec.
//
// +kubebuilder:object:generate=true
// +groupName=fixedip.io
package v1alpha1
