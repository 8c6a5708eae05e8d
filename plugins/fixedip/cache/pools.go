// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"context"

	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
)

// Pools reads and writes the pools of nodes at the API server. What it reads and writes is in the ledger before the
// call returns.
type Pools struct {
	api    *ciliumpool.Client
	writer *ciliumpool.Writer
}

// NewPools returns Pools that work until ctx ends, and keep the ledger of a Cache up to date.
func NewPools(ctx context.Context, api *ciliumpool.Client, c *Cache) *Pools {
	p := &Pools{api: api, writer: ciliumpool.NewWriter(ctx, api, c.Ledger.Node)}
	p.writer.OnPatch = metrics.PoolWrite
	p.writer.OnPool = func(n pool.NodePool) { c.PoolChanged(n.Name, c.Ledger.ObserveWrite(n)) }
	return p
}

// WriteRequest is a write to the pool of one node: see ciliumpool.WriteRequest.
type WriteRequest struct {
	Node   string
	Decide func(pool.NodePool) ([]pool.EntryChange, error)
	// FromAPIServer makes the decision from the pool as the API server has it, and not from the cache.
	FromAPIServer bool
	// RequireUnchangedSpec makes the write fail if anything in the spec has changed since the decision.
	RequireUnchangedSpec bool
}

// Read returns the pool of a node as the API server has it. ErrNodeGone if there is none.
func (p *Pools) Read(ctx context.Context, node string) (pool.NodePool, error) {
	return p.api.Get(ctx, node)
}

// Write makes a change, and returns when it is made.
func (p *Pools) Write(ctx context.Context, c WriteRequest) error {
	return p.writer.Write(ctx, ciliumpool.WriteRequest{Node: c.Node, Decide: c.Decide, FromAPIServer: c.FromAPIServer, RequireUnchangedSpec: c.RequireUnchangedSpec})
}
