// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package ledger is the index over the pools of all nodes, the claims in flight (assumed and not forgotten yet) and the
// reservations of FixedIPs. A Ledger finds the addresses of a pod on each node, the home node of an address, the number of
// available addresses of a node, and the address for the next claim.
//
// The package has no clock, no goroutine and no client, so that a test can drive it step by step. Watches update a Ledger;
// the scheduler plugin and the controller read it. Its decisions are not final: the pool of the home node in the API server
// decides.
package ledger
