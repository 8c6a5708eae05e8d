// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package measure reads what processes cost: memory and CPU time from /proc, and metrics in the text format of Prometheus.
package measure
