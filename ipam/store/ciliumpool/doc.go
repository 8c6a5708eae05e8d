// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package ciliumpool reads the pools of nodes from CiliumNodes and writes them. It is the only package that knows the text
// format of pools and entries in Cilium's CRD mode, and the only one that writes CiliumNodes. Another backend would be
// another package.
//
// Every write is one patch that applies only if the state on which the decision was based is unchanged. It is a JSON
// patch with tests or, for the probe in a CiliumNode without a report, a merge patch with the resourceVersion. The API
// server applies the whole patch or nothing of it, whatever other clients write. The package never updates a whole
// CiliumNode: the agent does that, and exits after ten conflicts (Cilium fact 10).
package ciliumpool
