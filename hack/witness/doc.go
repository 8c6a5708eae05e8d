// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package witness watches a cluster through the API server and checks the invariants of fixedip: a pod keeps its address, no
// two pods, FixedIPs or pools have the same address, and a claim is written before its pod is bound. The demo, the
// integration tests and the end-to-end tests use it.
//
// The package only reads, and shares no code with the product except the API types and their scheme, so that its checks are
// independent of the product.
package witness
