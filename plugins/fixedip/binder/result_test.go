// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
)

func TestResultOf(t *testing.T) {
	expired, cancel := context.WithDeadlineCause(t.Context(), time.Unix(0, 0), errors.New("not done within claimTimeout 10s"))
	defer cancel()
	canceled, cancelNow := context.WithCancel(t.Context())
	cancelNow()
	for name, c := range map[string]struct {
		ctx  context.Context
		err  error
		want metrics.Result
	}{
		"written":                                         {t.Context(), nil, metrics.Written},
		"written, claimTimeout has passed":                {expired, nil, metrics.Written},
		"another pod has the address":                     {t.Context(), fmt.Errorf("address 10.0.1.1: %w", pool.ErrTaken), metrics.Conflict},
		"the CiliumNode is gone":                          {t.Context(), fmt.Errorf("CiliumNode n: %w", ciliumpool.ErrGone), metrics.NodeGone},
		"the CiliumNode is gone, claimTimeout has passed": {expired, fmt.Errorf("CiliumNode n: %w", ciliumpool.ErrGone), metrics.NodeGone},
		"no response within claimTimeout":                 {expired, fmt.Errorf("write to CiliumNode n: %w", context.Cause(expired)), metrics.TimedOut},
		"the scheduler is stopping":                       {canceled, fmt.Errorf("write to CiliumNode n: %w", context.Cause(canceled)), metrics.Failed},
		"the API server refuses the write":                {t.Context(), errors.New("forbidden"), metrics.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			if got := resultOf(c.ctx, c.err); got != c.want {
				t.Errorf("got result %s, want %s", got, c.want)
			}
		})
	}
}
