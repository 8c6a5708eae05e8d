// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package waiting reports the pods that wait for a node: the node has their addresses, and no scheduler can place the pods
// there, because the node is drained, not ready, gone or full. An event on the Node, unless it is gone, informs the
// administrator who drains the node, and Counts provides the numbers for a metric. The package also measures how long a bound
// pod with a fixed address waits for the address in its status (binds).
//
// The package writes only events. It stores in memory only the pods that it has reported for each node and the bound pods
// without an address: a replica that takes over reports the waiting pods once more. The events of a pod and kubectl fixedip
// explain show the reason why that pod waits.
package waiting
