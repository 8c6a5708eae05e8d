// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package metrics defines the metrics of the FixedIP plugin, which the scheduler serves together with its own.
//
// No decision may depend on a metric. A program serves few values of each label, and no label contains the name of a pod or
// of a node.
package metrics
