// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package ciliumpool reads the pools of nodes from CiliumNodes and writes them. It is the only package that knows how
// Cilium's CRD mode and fixedip spell a pool and its entries, and the only writer of CiliumNodes. Another backend would be
// another package beside it.
//
// Every write is one JSON patch whose tests name what the decision was made from, so that it is applied as a whole or not
// at all, whatever other writers do. The package never updates a whole CiliumNode: the agent does that, and exits after
// ten conflicts (Cilium fact 10).
package ciliumpool
