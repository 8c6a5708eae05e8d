// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package status judges the state of an installation: both programs, their configuration and leaders, Cilium, the pools of the
// nodes, and the FixedIPs.
//
// It is pure: the caller reads the objects and reports which of them could not be read. An object that could not be read is
// never judged as healthy. Contradictions between objects are the subject of package check.
package status
