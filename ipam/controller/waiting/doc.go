// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package waiting reports the pods that wait for a node: the node has their addresses, and no scheduler can place them
// there, because the node is drained, not ready, gone or full. An event on the Node informs the person who drains it, and
// Counts provides the numbers for a metric.
//
// The package changes no object except events, and keeps in memory only on which nodes it has reported pods: a replica
// that takes over reports them once more. The events of a pod and kubectl fixedip explain show why that pod waits.
package waiting
