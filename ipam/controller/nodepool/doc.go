// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodepool keeps the pool of each CiliumNode: its dynamic entries within the watermark, the release handshakes,
// the end of cooldowns, and the entries of strict nodes.
//
// One pass over a node:
//
//	gather      nodepool.State from the ledger and the caches (gather.go)
//	            + answers of the agent that are overdue (handshake_timeouts.go)
//	decide      State.Edits and State.Marks, in ipam/core/nodepool
//	read live   if an edit would be wrong for a pod that the cache does not show yet, the Node and its pods are read
//	            from the API server, and the edits are decided again
//	write       one write of edits and marks, confirmed by the live pods, and undone if they disagree (Reconciler.write)
//	ask         the agent, if it has not reported to its CiliumNode for a minute (Reconciler.askUnreported), and whether it
//	            has seen a cooldown that is over (Reconciler.acknowledged)
//	requeue     at State.NextCheck; Nodes, pods and the ledger cause all other passes (Reconciler.Setup)
//
// The package may not change entries that an identity owns: those belong to the scheduler and to the controllers fixedip,
// release and conformance. Subnets belong to the package subnet, which asks FirstEntries for the entries of a new pool.
// It decides nothing about addresses itself, and keeps in memory only what a new replica can do without: since when
// reports and answers are overdue.
package nodepool
