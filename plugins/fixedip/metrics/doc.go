// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package metrics defines the metrics of the FixedIP plugin, which the scheduler serves together with its own.
//
// No decision may depend on a metric. Every label has a small, fixed set of values, and none of them is the name of a pod or
// a node.
package metrics
