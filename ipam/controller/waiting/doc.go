// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package waiting says which pods wait for a node: pods whose address a node has, and that no scheduler can place there,
// because the node is drained, not ready, gone or full. An event on the Node says it to the person who drains it, and
// Counts says it to a metric.
//
// It changes nothing, and keeps in memory only on which nodes it has reported pods: a replica that takes over reports them
// once more. Why one pod waits is in the events of that pod, and kubectl fixedip explain says it.
package waiting
