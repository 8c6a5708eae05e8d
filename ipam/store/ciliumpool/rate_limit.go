// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ciliumpool

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/utils/clock"
)

// Pace spreads the writes of one Writer over time: every write to a CiliumNode goes to every agent,
// and can cost its own agent one of the ten tries that it has for an update. Half of what a minute
// allows may come at once, the other half is spread, so that no minute ever sees more than its
// whole. Requests that wait gather meanwhile, and go together.
//
// Urgent requests don't wait, but count.
type Pace struct {
	clock     clock.Clock
	perMinute int

	mu sync.Mutex
	// nodes have what is left of each node's allowance. Key: the node. One whose allowance is whole
	// need not be there.
	nodes map[string]*rate.Limiter
}

// NewPace allows at most perMinute writes for each node in any minute. It has to be 2 at least.
func NewPace(c clock.Clock, perMinute int) *Pace {
	return &Pace{clock: c, perMinute: perMinute, nodes: map[string]*rate.Limiter{}}
}

// Wait is how long the next write for the node has to wait; 0: it need not.
func (p *Pace) Wait(node string) time.Duration {
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
func (p *Pace) Spend(node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l, ok := p.nodes[node]
	if !ok {
		spread := p.perMinute / 2
		l = rate.NewLimiter(rate.Limit(float64(spread)/time.Minute.Seconds()), p.perMinute-spread)
		p.nodes[node] = l
	}
	// A reservation can go below zero, unlike a wait that is given up.
	l.ReserveN(p.clock.Now(), 1)
}

// Pace spreads the writes. Call it before the first Write.
func (w *Writer) Pace(p *Pace) { w.pace = p }

// Delay is how long a request for the node would wait for its turn; 0: it would not. Who can come
// again later need not hold a worker meanwhile.
func (w *Writer) Delay(node string) time.Duration {
	if w.pace == nil {
		return 0
	}
	return w.pace.Wait(node)
}

// dwell returns when the next write for the node may be made: in its time, when an urgent request
// has come, or at the end. waited tells whether that was later than at once.
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
		t := w.pace.clock.NewTimer(d)
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

func (w *Writer) spend(node string) {
	if w.pace != nil {
		w.pace.Spend(node)
	}
}
