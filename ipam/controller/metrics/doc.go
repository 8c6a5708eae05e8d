// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package metrics defines the metrics of the controller.
//
// It only counts: no decision may depend on it. Gauges that can be computed from the ledger and the
// caches are computed when metrics are served, so that they cost nothing while objects change.
//
// Unlike the scheduler's metrics, some of these have the node as a label: alerts need the fill level
// of each pool.
package metrics
