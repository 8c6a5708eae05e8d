// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package scaledown marks the nodes whose subnets have reserved addresses, with the annotations by which autoscalers leave a
// node alone.
//
// It writes Nodes and nothing else, removes only annotations that it has set, and keeps nothing in memory: an annotation of
// the Node lists those that it has set. What becomes of the addresses of a node that is removed after all is decided in
// package subnetplan.
package scaledown
