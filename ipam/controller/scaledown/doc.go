// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package scaledown marks the nodes whose subnets have reserved addresses, with the annotations by which autoscalers leave a
// node alone.
//
// It writes Nodes and nothing else, removes only annotations that it has set, and keeps nothing in memory: an annotation of
// the Node lists the annotations that it has set. Package subnetplan decides about the subnets of nodes that are deleted.
package scaledown
