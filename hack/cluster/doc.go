// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package cluster runs a whole cluster as processes of this machine, without root: the control plane in one process,
// simulated nodes and the programs of fixedip. It starts, stops and kills processes and applies manifests, and contains no
// logic of fixedip. The demo, the tests and the cluster of real nodes use it.
package cluster
