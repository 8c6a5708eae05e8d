// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/test/bench/measure"
)

// quietTime is the time without work after which the controller counts as idle.
const quietTime = 10 * time.Second

// program is the running controller. metrics and health are URLs; began is the time of the start.
type program struct {
	*cluster.Process
	metrics, health string
	began           time.Time
}

// state returns the size of the Go heap in bytes. busy is true if requests wait in the queues of the controller, or if the
// controller is not the leader.
func (p *program) state(ctx context.Context) (heap int64, busy bool, err error) {
	m, err := measure.Read(ctx, http.DefaultClient, p.metrics)
	if err != nil {
		return 0, false, err
	}
	busy = m.Sum("workqueue_depth", nil) > 0 || m.Sum("leader_election_master_status", nil) == 0
	return int64(m.Sum("go_memstats_heap_alloc_bytes", nil)), busy, nil
}

// awaitReady waits until the program is ready and returns the time since its start.
func (p *program) awaitReady(ctx context.Context) (time.Duration, error) {
	return p.await(ctx, "to be ready", 100*time.Millisecond, func() (bool, error) {
		body, err := measure.Get(ctx, http.DefaultClient, p.health)
		if err == nil {
			err = body.Close()
		}
		return err == nil, err
	})
}

// awaitQuiet waits until the program has been the leader with empty queues and without a write for quietTime. written
// returns the number of its writes so far. awaitQuiet returns the time from the start of the program to the beginning
// of that quiet time.
func (p *program) awaitQuiet(ctx context.Context, written func(context.Context) (int, error)) (time.Duration, error) {
	since, last := time.Now(), -1
	ended, err := p.await(ctx, "to become idle", time.Second, func() (bool, error) {
		_, busy, err := p.state(ctx)
		if err != nil {
			return false, err
		}
		now, err := written(ctx)
		if err != nil {
			return false, err
		}
		if busy || now != last {
			since = time.Now()
		}
		last = now
		return time.Since(since) >= quietTime, nil
	})
	return ended - time.Since(since), err
}

// await polls until done returns true, because the program sends no events about its state. It returns the time since the
// start of the program. An error of done does not end the polling: if ctx ends first, the error of await contains the last
// error of done. what completes the error "wait for NAME ...".
func (p *program) await(ctx context.Context, what string, interval time.Duration, done func() (bool, error)) (time.Duration, error) {
	var last error
	for {
		ok, err := done()
		if ok {
			return time.Since(p.began), nil
		}
		last = err
		select {
		case <-time.After(interval):
		case <-p.Exited():
			return 0, fmt.Errorf("wait for %s %s: the process exited: %s; the log is %s", p.Name, what, p.ExitState(), p.LogPath())
		case <-ctx.Done():
			return 0, fmt.Errorf("wait for %s %s: %w", p.Name, what, errors.Join(context.Cause(ctx), last))
		}
	}
}
