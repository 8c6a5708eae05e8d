// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package scheme registers the API types that the programs read and write: those of Kubernetes, of Cilium,
// and of fixedip. It has no other logic.
package scheme
