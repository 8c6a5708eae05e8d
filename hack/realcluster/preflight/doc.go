// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package preflight checks whether a machine can run a cluster of real nodes, and lists what is missing. It tests
// features in temporary namespaces and leaves nothing behind. It is small, so that it can be compiled and run before
// anything that takes long.
package preflight
