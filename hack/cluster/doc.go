// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package cluster runs a whole cluster as processes of this machine, without root: the one-process control plane,
// simulated nodes and the programs of fixedip. The demo and the integration tests use it. It starts, stops and kills
// processes; it does no work of the product, and knows its objects only as YAML.
package cluster
