// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package ciliumpool reads the pools of nodes from CiliumNodes and writes them. It is the only package that knows how
// Cilium's CRD mode and fixedip spell a pool and its entries, and the only one that writes CiliumNodes. Another backend
// would be another package beside it.
//
// Every write is one patch that applies only if the state on which the decision was based is unchanged: a JSON patch with
// tests or, for the probe in a CiliumNode without a report, a merge patch with the resourceVersion. It is applied as a
// whole or not at all, whatever other writers do. The package never updates a whole CiliumNode: the agent does that, and
// exits after ten conflicts (Cilium fact 10).
package ciliumpool
