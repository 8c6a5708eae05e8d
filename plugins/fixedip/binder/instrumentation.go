// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"errors"
	"time"

	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/plugins/fixedip/cache"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
)

// observed counts how a claim ends, and times it if it has to be written.
func (b *Binder) observed(ctx context.Context, c ledger.Claim, claim func() error) error {
	stood, began := b.Cache.Ledger.IsClaimed(c), time.Now()
	err := claim()
	if stood && err == nil {
		metrics.ClaimEnded(metrics.Standing, 0)
	} else {
		metrics.ClaimEnded(resultOf(ctx, err), time.Since(began))
	}
	return err
}

// observedMigration counts how a migration ends.
func (b *Binder) observedMigration(ctx context.Context, migrate func() error) error {
	err := migrate()
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
	case errors.Is(err, cache.ErrNodeGone):
		return metrics.Gone
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return metrics.TimedOut
	default:
		return metrics.Failed
	}
}
