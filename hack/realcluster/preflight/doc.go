// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package preflight checks whether a machine can run a cluster of real nodes, and lists the missing prerequisites. It tests
// kernel features in temporary namespaces and leaves nothing behind. It has few dependencies, so that it can be compiled and
// run before the programs of a cluster, whose build takes long.
package preflight
