// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package measure reads the memory and CPU time of processes from /proc, and metrics in the text format of Prometheus.
package measure
