// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package cluster runs a whole cluster as processes of this machine, without root: the control plane in one process,
// simulated nodes and the programs of fixedip. The demo and the integration tests use it. It starts, stops and kills
// processes, applies manifests, and contains no logic of fixedip.
package cluster
