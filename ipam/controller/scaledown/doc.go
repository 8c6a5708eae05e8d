// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package scaledown annotates the nodes whose subnets have reserved addresses, so that autoscalers do not remove these nodes.
//
// It writes only Nodes, removes only annotations that it has set, and stores nothing in memory: the annotation ListOfOurs of a Node
// lists the annotations that fixedip has set. Package subnetplan decides about the subnets of deleted nodes.
package scaledown
