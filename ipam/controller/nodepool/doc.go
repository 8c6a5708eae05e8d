// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodepool maintains the pool of each CiliumNode: its dynamic entries within the watermark, the end of cooldowns,
// and the entries of strict nodes. It withdraws the release handshakes that another program started.
//
// One pass over a node:
//
//	gather      collect nodepool.State from the ledger and the caches (gather.go)
//	decide      compute State.Edits, in ipam/core/nodepool; if a cooldown is over, ask the agent whether it has seen the
//	            cooldown (Reconciler.acknowledged)
//	read live   if an edit would be wrong for a pod that the cache does not show yet, read the Node and its pods from
//	            the API server, and decide again
//	write       write edits and withdraw handshakes with one call of the writer; if entries of unreserved pods were removed,
//	            read the pods again, and restore the entries that a pod needs (Reconciler.write)
//	ask         ask the agent for a report if its first one does not arrive in time (Reconciler.askUnreported)
//	requeue     at State.NextCheck, or when it is time to ask; changes of Nodes, pods and the ledger, and answers of agents
//	            cause the other passes (Reconciler.Setup)
//
// The package must not change entries that an identity owns: those belong to the scheduler and to the controllers
// fixedip, release and conformance. Subnets belong to the package subnet, which calls Reconciler.FirstEntries for the
// entries of a new pool. ipam/core/nodepool makes all decisions about entries. The package stores in memory only
// state that a new replica does not need (memory.go): since when first reports are pending, which addresses this process has
// withdrawn, and whether managedFields were removed.
package nodepool
