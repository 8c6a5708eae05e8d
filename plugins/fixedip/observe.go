// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
)

var (
	_ metrics.World       = &world{}
	_ ciliumpool.Observer = metrics.PoolWrites{}
)

// Size is that of the ledger.
func (w *world) Size() ledger.Size { return w.ledger.Size() }

// Synced tells which watches have shown all that stood when the scheduler started.
func (w *world) Synced() map[string]bool {
	all := make(map[string]bool, len(w.synced))
	for resource, synced := range w.synced {
		all[resource] = synced()
	}
	return all
}

// observedClaim is claim, counted and timed.
func (w *world) observedClaim(ctx context.Context, c ledger.Claim, entry pool.Entry, named bool) error {
	return w.observed(ctx, c, func() error { return w.claim(ctx, c, entry, named) })
}

// observed counts how a claim is made, and times it where it did not stand.
func (w *world) observed(ctx context.Context, c ledger.Claim, claim func() error) error {
	stood, began := w.ledger.Stands(c), time.Now()
	err := claim()
	if stood && err == nil {
		metrics.ClaimEnded(metrics.Standing, 0)
	} else {
		metrics.ClaimEnded(resultOf(ctx, err), time.Since(began))
	}
	return err
}

// observedMove is move, counted.
func (p *Plugin) observedMove(ctx context.Context, pod *corev1.Pod, c *cycle, claim ledger.Claim) error {
	err := p.move(ctx, pod, c, claim)
	result := resultOf(ctx, err)
	switch {
	case err == nil:
		result = metrics.Moved
	case errors.Is(err, pool.ErrUnfenced):
		result = metrics.Unfenced
	case errors.Is(err, pool.ErrUndecided):
		result = metrics.Taken
	}
	metrics.MoveEnded(result)
	return err
}

// resultOf names how a claim ended that had to be written.
func resultOf(ctx context.Context, err error) metrics.Result {
	switch {
	case err == nil:
		return metrics.Written
	case errors.Is(err, pool.ErrTaken):
		return metrics.Taken
	case errors.Is(err, ciliumpool.ErrGone):
		return metrics.Gone
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return metrics.TimedOut
	default:
		return metrics.Failed
	}
}

// by names what about the news helps a pod that waits for c. Ask only where something does. What
// concerns the pod alone goes before what concerns many.
func (n news) by(c cause) metrics.Cause {
	switch {
	case slices.Contains(n.owners, c.owner):
		return metrics.Owner
	case c.node != "" && c.node == n.node:
		return metrics.Node
	default:
		return metrics.Room
	}
}
