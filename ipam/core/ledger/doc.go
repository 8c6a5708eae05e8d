// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package ledger is the index over the pools of all nodes, together with the claims that are decided but not yet seen in a
// pool and with the reservations of FixedIPs: which pod has which address on which node, which node is the home of an
// address, how many addresses a node has left, and which address the next claim takes.
//
// It is pure: it has no clock, no goroutine and no client, so that a test can drive it step by step. Watches update it; the
// scheduler plugin and the controller read it. Its decisions are not final: the pool of the home node in the API server
// decides.
package ledger
