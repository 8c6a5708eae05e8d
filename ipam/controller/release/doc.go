// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package release releases addresses, with one write for all addresses that are released on a node at about the same time.
//
// Every release is decided twice, from the caches and from the API server:
//
//  1. The controller of FixedIPs decides from the caches that an identity has to release its addresses on a node, and adds
//     the identity to the batch of that node (Batches).
//  2. When the batch is complete, this controller reads the pods of the node, the workloads and the FixedIPs from the API
//     server. It decides for each identity again, deletes the FixedIPs, and puts all addresses into cooldown in one
//     ciliumpool.Change. Another read of the pods confirms that Change.
//
// The controller of FixedIPs removes the finalizer when the watch shows that no pool has an entry of the identity, and the
// controller of node pools ends the cooldown. Batches are in memory only: a replica that becomes the leader decides for
// every identity again.
//
// The package does not decide about addresses: reclaim.Decide does.
package release
