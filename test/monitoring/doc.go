// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package monitoring tests the alerts of manifests/prometheus with promtool, the program that Prometheus itself uses for
// such tests, their runbooks, and the dashboard. The metrics come from tables, not from running programs: TestMonitoring of
// the integration tests checks that the programs serve them.
package monitoring
