// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package release releases all addresses of identities on a node, with one write for all identities that release addresses
// there at about the same time. The controller of FixedIPs itself releases slots, moved addresses, single entries, and claims
// without a FixedIP.
//
// Every release is decided twice:
//
//  1. The controller of FixedIPs decides from the caches that an identity has to release its addresses on a node, and adds
//     the identity to the batch of that node (Batches).
//  2. When the batch is complete, this controller reads the pods of the node and the workloads from the API server, and the
//     FixedIPs from the cache (those that are being deleted: from the API server). It decides for each identity again, and
//     deletes the FixedIPs, with the version that was read as a precondition. Then it puts all addresses into cooldown in
//     one ciliumpool.Change. Another read of the pods confirms that Change.
//
// The controller of FixedIPs removes the finalizer when the watch shows that no pool has an entry of the identity. If the
// write of the pool fails until the deadline is over, this controller removes the finalizer. The controller of node pools
// ends the cooldown. Batches are in memory only: a replica that becomes the leader decides for every identity again.
//
// The package does not decide about addresses: reclaim.Decide does.
package release
