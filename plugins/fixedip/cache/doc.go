// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package cache is the view of the cluster that the plugin decides from: the pools of all nodes, what FixedIPs
// reserve, and the workloads.
//
// A claim counts as soon as the API server has answered the write; the watch may show it later. The same view wakes
// the pods that wait: a second watch, as the framework's own for custom resources, could wake a pod before the
// decision can see why (kubernetes/kubernetes#73305, #133872).
//
// The profiles of a scheduler share one Cache. It decides nothing.
package cache
