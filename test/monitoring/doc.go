// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package monitoring tests the alerts and the dashboard of manifests/prometheus, the runbooks of the alerts, and the page
// docs/reference/waiting.md. promtool, Prometheus' own program for such tests, checks the alerts and the queries of the
// dashboard. The metrics come from tables, not from running programs: the integration test TestMonitoringNamesExist checks
// that the programs serve them.
package monitoring
