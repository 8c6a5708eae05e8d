// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package cache is the view of the cluster that the plugin decides from: the pools of all nodes, the addresses that FixedIPs
// reserve, and the workloads.
//
// A claim counts as soon as the API server has responded to the write, even if the watch shows the claim later. The
// events that requeue waiting pods come from the same view. A second watch, such as the framework's own watch of custom
// resources, could requeue a pod before the decision sees the change (kubernetes/kubernetes#73305, #133872).
//
// The profiles of a scheduler share one Cache. The package makes no scheduling decisions.
package cache
