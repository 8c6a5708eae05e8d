// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package preflight checks whether a machine can run a cluster of real nodes, and describes the missing prerequisites. It
// tests kernel features in temporary namespaces and does not change the machine. It has few dependencies, so that it can be
// compiled and run before the programs of a cluster, whose build takes minutes.
package preflight
