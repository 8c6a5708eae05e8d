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
	late, cancel := context.WithDeadlineCause(t.Context(), time.Unix(0, 0), errors.New("not done within claimTimeout 10s"))
	defer cancel()
	ended, end := context.WithCancel(t.Context())
	end()
	for name, c := range map[string]struct {
		ctx  context.Context
		err  error
		want metrics.Result
	}{
		"written":                       {t.Context(), nil, metrics.Written},
		"written at the last moment":    {late, nil, metrics.Written},
		"somebody was faster":           {t.Context(), fmt.Errorf("address 10.0.1.1: %w", pool.ErrTaken), metrics.Taken},
		"the node went":                 {t.Context(), fmt.Errorf("CiliumNode n: %w", ciliumpool.ErrGone), metrics.Gone},
		"the node went, time went too":  {late, fmt.Errorf("CiliumNode n: %w", ciliumpool.ErrGone), metrics.Gone},
		"no answer in time":             {late, fmt.Errorf("write to CiliumNode n: %w", context.Cause(late)), metrics.TimedOut},
		"the scheduler ends":            {ended, fmt.Errorf("write to CiliumNode n: %w", context.Cause(ended)), metrics.Failed},
		"the API server does not agree": {t.Context(), errors.New("forbidden"), metrics.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			if got := resultOf(c.ctx, c.err); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}
