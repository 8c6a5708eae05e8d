// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package scheme registers the API types of Kubernetes, Cilium and fixedip that the programs read and write.
package scheme
