// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ciliumpool

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/utils/clock"
)

// RateLimiter limits the rate of the writes of one Writer to each node: every agent receives every write to a CiliumNode, and a
// write can cost the node's own agent one of the ten tries of an update (Cilium fact 10). Half of the writes that a minute
// allows may be made at once and the other half is spread, so that no minute ever has more than it allows. Requests that
// wait are written together.
//
// Urgent requests do not wait, but count. A nil RateLimiter limits nothing.
type RateLimiter struct {
	clock     clock.Clock
	perMinute int

	mu sync.Mutex
	// nodes have a limiter for each node that was written to recently.
	nodes map[string]*rate.Limiter
}

// NewRateLimiter returns a RateLimiter of at most perMinute writes for each node in any minute. perMinute must be at least 2.
func NewRateLimiter(c clock.Clock, perMinute int) *RateLimiter {
	return &RateLimiter{clock: c, perMinute: perMinute, nodes: map[string]*rate.Limiter{}}
}

// Wait returns how long the next write for the node has to wait.
func (p *RateLimiter) Wait(node string) time.Duration {
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	l, ok := p.nodes[node]
	if !ok {
		return 0
	}
	tokens := l.TokensAt(p.clock.Now())
	if tokens >= float64(l.Burst()) {
		delete(p.nodes, node)
	}
	if tokens >= 1 {
		return 0
	}
	return time.Duration((1 - tokens) / float64(l.Limit()) * float64(time.Second))
}

// Spend counts one write.
func (p *RateLimiter) Spend(node string) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	l, ok := p.nodes[node]
	if !ok {
		spread := p.perMinute / 2
		l = rate.NewLimiter(rate.Limit(float64(spread)/time.Minute.Seconds()), p.perMinute-spread)
		p.nodes[node] = l
	}
	// A reservation may go below zero, unlike a wait.
	l.ReserveN(p.clock.Now(), 1)
}

// Delay returns how long a request for the node would wait because of the rate limit. A controller can requeue instead of
// blocking a worker.
func (w *Writer) Delay(node string) time.Duration { return w.RateLimit.Wait(node) }

// dwell returns when the next write for the node may be made: after its delay, when an urgent request arrives, or when the
// context ends. waited reports whether it blocked.
func (w *Writer) dwell(node string) (waited bool) {
	for {
		d := w.Delay(node)
		w.mu.Lock()
		none, urgent := len(w.queues[node].waiting) == 0, w.queues[node].urgent
		w.mu.Unlock()
		if d == 0 || none {
			return waited
		}
		waited = true
		t := w.RateLimit.clock.NewTimer(d)
		select {
		case <-t.C():
		case <-urgent:
			t.Stop()
			return waited
		case <-w.ctx.Done():
			t.Stop()
			return waited
		}
	}
}
