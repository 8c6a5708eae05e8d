// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ciliumpool

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"fixedip.io/fixedip/ipam/core/pool"
)

const (
	// writeTries is the maximum number of tries for one batch. A conflict costs one try, and so does a request that gets no
	// response.
	writeTries = 6
	// writeTimeout is the time limit for one try: a read, a patch of the entries and a withdrawal of handshakes. It is also
	// the time limit for WriteProbe and for Get.
	writeTimeout = 10 * time.Second
)

// WriteRequest is a request for a change of the pool of one node. Decide returns the edits of the current pool that fulfill
// the request: none if the pool fulfills it already, an error if the request can't be fulfilled. Decide may be called several
// times, and must decide from its argument alone.
type WriteRequest struct {
	Node   string
	Decide func(n pool.NodePool) ([]pool.EntryChange, error)
	// FromAPIServer requires that Decide gets the pool from the API server, never from the cache.
	FromAPIServer bool
	// RequireUnchangedSpec requires that the whole spec, and not only the edited entries, is unchanged since the decision.
	RequireUnchangedSpec bool
	// WithdrawHandshakes requires that the release handshakes of the node are withdrawn (pool.NodePool.Withdrawable), in a
	// write after that of the edits.
	WithdrawHandshakes bool
	// StripManagedFields requires a write, even without edits, if the CiliumNode has managedFields (see
	// Client.StripManagedFields).
	StripManagedFields bool
	// SkipRateLimit makes the request urgent: it does not wait for the rate limit.
	SkipRateLimit bool
}

// Writer writes requests into pools. Requests for one node that wait at the same time are written in one patch, and at
// most one such patch of a node is in flight. The API server retries conflicting patches itself, so that a burst of
// them makes each one slow; and every agent receives every write. A request that can't be fulfilled does not fail the
// others of its patch.
type Writer struct {
	// RateLimit limits the rate of writes to each node; nil: there is no limit. Set RateLimit, OnPatch and OnPool before the
	// first Write.
	RateLimit *RateLimiter
	// OnPatch is called after a patch of entries or of a probe, if the patch was applied or failed with ErrChanged (conflict).
	// requests is the number of requests of the patch; 1 for a probe. OnPatch is not called after a withdrawal of handshakes.
	// It must not block.
	OnPatch func(requests int, conflict bool)
	// OnPool is called with each pool that the API server returned for a patch or a read of Write, before Write returns for the
	// requests of that try. It is not called for WriteProbe and Get. It is meant to call Ledger.ObserveWrite. Reads are
	// included, because a read can show a write whose response was lost.
	OnPool func(pool.NodePool)

	ctx   context.Context
	pools *Client
	// known returns the pool of a node from the cache, which saves a read.
	known func(node string) (pool.NodePool, bool)
	// retry defines the pauses between tries.
	retry wait.Backoff

	mu sync.Mutex
	// queues contains the requests that wait for the next patch of each node. Key: the node. A key exists exactly while a
	// goroutine serves that node.
	queues map[string]*queue
	// written contains the pools after writes of this Writer that the cache does not show yet. Key: the node.
	written map[string]pool.NodePool
	served  sync.WaitGroup
}

// queue contains the requests that wait for the next patch of one node. The mutex of the Writer guards it.
type queue struct {
	waiting []*queued
	// skipRateLimit is closed when a request with SkipRateLimit waits.
	skipRateLimit chan struct{}
}

func newQueue() *queue { return &queue{skipRateLimit: make(chan struct{})} }

func (q *queue) add(r *queued) {
	if r.SkipRateLimit && !slices.ContainsFunc(q.waiting, func(w *queued) bool { return w.SkipRateLimit }) {
		close(q.skipRateLimit)
	}
	q.waiting = append(q.waiting, r)
}

type queued struct {
	WriteRequest
	// done receives the result, once. It is buffered, because the caller may have stopped waiting.
	done chan error
}

// NewWriter returns a Writer that works until ctx ends. known returns the pool of a node from a cache.
func NewWriter(ctx context.Context, pools *Client, known func(node string) (pool.NodePool, bool)) *Writer {
	return &Writer{
		ctx:     ctx,
		pools:   pools,
		known:   known,
		retry:   wait.Backoff{Duration: 50 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: writeTries},
		queues:  map[string]*queue{},
		written: map[string]pool.NodePool{},
	}
}

// observePool calls OnPool with a pool that the API server returned.
func (w *Writer) observePool(n pool.NodePool) {
	if w.OnPool != nil {
		w.OnPool(n)
	}
}

// observePatch calls OnPatch if the patch was applied or failed with a conflict. It does not call OnPatch if the API server
// refused the patch for another reason, or if it is not known whether the patch was applied.
func (w *Writer) observePatch(requests int, err error) {
	if conflict := errors.Is(err, ErrChanged); w.OnPatch != nil && (err == nil || conflict) {
		w.OnPatch(requests, conflict)
	}
}

// Write writes a request into the pool. It returns when the request is fulfilled, when it has failed, or when ctx ends. It
// returns an error of Decide unchanged. After such an error, ErrGone or ErrRefused, the last try wrote nothing for the
// request, except that the edits of a request with WithdrawHandshakes may have been written. After any other error the
// request may have been written, or may be written later.
func (w *Writer) Write(ctx context.Context, r WriteRequest) error {
	q := &queued{WriteRequest: r, done: make(chan error, 1)}
	w.mu.Lock()
	line, served := w.queues[r.Node]
	if !served {
		line = newQueue()
		w.queues[r.Node] = line
	}
	line.add(q)
	if !served {
		w.served.Go(func() { w.serve(r.Node) })
	}
	w.mu.Unlock()
	select {
	case err := <-q.done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("write to CiliumNode %s: %w", r.Node, context.Cause(ctx))
	}
}

// Wait returns when no write is in flight. Call it after the context of NewWriter has ended.
func (w *Writer) Wait() { w.served.Wait() }

// serve writes the requests for one node, batch by batch, until no request waits. A batch starts from the pool after the
// previous batch, which the cache may not show yet, or from a newer pool that the cache shows. After a wait for the rate limit,
// the batch starts from the pool at the API server.
func (w *Writer) serve(node string) {
	n, known := w.latest(node)
	for {
		if w.waitForRateLimit(node) {
			// The pool may have changed during the wait.
			known = false
		}
		w.mu.Lock()
		batch := w.queues[node].waiting
		if len(batch) == 0 {
			delete(w.queues, node)
			w.storeWritten(n, known)
			w.mu.Unlock()
			return
		}
		w.queues[node] = newQueue()
		w.mu.Unlock()
		if shown, ok := w.known(node); ok && known && n.OlderThan(shown) {
			// The newer version that the cache shows may be the reason for a request.
			n = shown
		}
		n, known = w.write(node, batch, n, known)
	}
}

// latest returns the newest known version of a node's pool: the pool after the last write of this Writer if the cache is
// behind, otherwise the pool in the cache. It returns false if there is none.
func (w *Writer) latest(node string) (pool.NodePool, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if last, ok := w.written[node]; ok && w.ahead(last) {
		return last, true
	}
	return w.known(node)
}

// storeWritten stores the pool after the last batch if the pool is known, and drops the stored pools that are not newer
// than the cache. It requires mu.
func (w *Writer) storeWritten(n pool.NodePool, known bool) {
	if known {
		w.written[n.Name] = n
	}
	maps.DeleteFunc(w.written, func(_ string, last pool.NodePool) bool { return !w.ahead(last) })
}

// ahead reports whether last has a newer spec of the same CiliumNode than the cache.
func (w *Writer) ahead(last pool.NodePool) bool {
	shown, ok := w.known(last.Name)
	return ok && shown.UID == last.UID && shown.Generation < last.Generation
}

// write tries to write one batch until every request has a result. It returns the pool after the batch, and whether that
// pool is known.
func (w *Writer) write(node string, batch []*queued, n pool.NodePool, known bool) (pool.NodePool, bool) {
	logger := klog.FromContext(w.ctx).WithValues("node", node)
	retry := w.retry
	for _, q := range batch {
		known = known && !q.FromAPIServer
	}
	var err error
	for try := range writeTries {
		// The first conflict was most likely caused by one other write, which is complete: the next try needs no pause.
		if again := try > 1 || try == 1 && !errors.Is(err, ErrChanged); again && !pause(w.ctx, retry.Step()) {
			finish(batch, fmt.Errorf("write to CiliumNode %s was stopped and may have been applied nevertheless: %w", node, context.Cause(w.ctx)))
			return pool.NodePool{}, false
		}
		var after pool.NodePool
		if batch, after, err = w.try(node, n, known, batch); err == nil || errors.Is(err, ErrGone) {
			finish(batch, err)
			return after, err == nil
		}
		if errors.Is(err, ErrRefused) {
			if len(batch) == 1 {
				finish(batch, err)
				return pool.NodePool{}, false
			}
			// One of the requests may be at fault. Write each of them separately, so that the others do not fail with it.
			for _, q := range batch {
				after, known = w.write(node, []*queued{q}, pool.NodePool{}, false)
			}
			return after, known
		}
		// The next try needs the current pool: a test has failed, or the write may have been applied although its response was
		// lost.
		known = false
		logger.V(2).Info("Failed to write the pool", "try", try+1, "requests", len(batch), "err", err)
	}
	finish(batch, fmt.Errorf("write to CiliumNode %s failed in %d tries and may have been applied nevertheless: %w", node, writeTries, err))
	return pool.NodePool{}, false
}

// try makes one try to write a batch. It returns the requests that have no result yet, and the pool after the try.
func (w *Writer) try(node string, n pool.NodePool, known bool, batch []*queued) ([]*queued, pool.NodePool, error) {
	ctx, cancel := context.WithTimeout(w.ctx, writeTimeout)
	defer cancel()
	if !known {
		var err error
		if n, err = w.pools.Get(ctx, node); err != nil {
			return batch, n, err
		}
		w.observePool(n)
	}
	open, edits := decide(n, batch)
	if len(edits) > 0 || slices.ContainsFunc(open, func(q *queued) bool { return q.StripManagedFields && n.Tracked }) {
		requireUnchangedSpec := slices.ContainsFunc(open, func(q *queued) bool { return q.RequireUnchangedSpec })
		w.RateLimit.Spend(node)
		after, err := w.pools.ChangeEntries(ctx, n, edits, requireUnchangedSpec)
		w.observePatch(len(open), err)
		if err != nil {
			return open, after, err
		}
		w.observePool(after)
		n = after
	}
	handshakes := n.Withdrawable()
	if len(handshakes) == 0 || !slices.ContainsFunc(open, func(q *queued) bool { return q.WithdrawHandshakes }) {
		return open, n, nil
	}
	w.RateLimit.Spend(node)
	after, err := w.pools.WithdrawHandshakes(ctx, n, handshakes)
	if err == nil {
		w.observePool(after)
	}
	return open, after, err
}

// decide calls Decide of each request in turn, with the edits of the earlier requests applied. It finishes the requests that
// can't be fulfilled, and those that the pool fulfills already. A request without edits stays open if an earlier request has
// edits: perhaps only those edits fulfill the request, and their write may fail. Requests with WithdrawHandshakes or
// StripManagedFields stay open even without edits.
func decide(n pool.NodePool, batch []*queued) (open []*queued, edits []pool.EntryChange) {
	for _, q := range batch {
		wanted, err := q.Decide(n)
		if fulfilled := len(wanted) == 0 && len(edits) == 0; err != nil || fulfilled && !q.WithdrawHandshakes && !q.StripManagedFields {
			q.done <- err
			continue
		}
		n = n.With(wanted)
		open = append(open, q)
		edits = append(edits, wanted...)
	}
	return open, edits
}

// finish sends the result to each request of a batch.
func finish(batch []*queued, err error) {
	for _, q := range batch {
		q.done <- err
	}
}

// pause waits for d. It returns false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// RateLimiter limits the rate of the writes of one Writer to each node. Every agent receives every write to a
// CiliumNode, and a write can cost the node's own agent one of the ten tries of an update (Cilium fact 10). Half of the
// writes per minute may be made at once, and the other half is spread over the minute, so that no minute has more
// writes than allowed. Requests that wait are written together.
//
// Urgent requests do not wait, but count. A nil RateLimiter limits nothing.
type RateLimiter struct {
	clock     clock.Clock
	perMinute int

	mu sync.Mutex
	// nodes contains a limiter for each node that was written to recently. Key: the node.
	nodes map[string]*rate.Limiter
}

// NewRateLimiter returns a RateLimiter that allows at most perMinute writes for each node in any minute. perMinute must be
// at least 2.
func NewRateLimiter(c clock.Clock, perMinute int) *RateLimiter {
	return &RateLimiter{clock: c, perMinute: perMinute, nodes: map[string]*rate.Limiter{}}
}

// Wait returns the time until the next write to the node is allowed.
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

// Spend counts one write to the node.
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
	// ReserveN lets the number of tokens become negative, so that urgent writes count too.
	l.ReserveN(p.clock.Now(), 1)
}

// Delay returns the time that a request for the node would wait because of the rate limit. A controller can requeue an
// object for that time instead of blocking a worker.
func (w *Writer) Delay(node string) time.Duration { return w.RateLimit.Wait(node) }

// waitForRateLimit returns when the next write to the node is allowed, when an urgent request arrives, or when the Writer
// ends. It returns at once if no request waits. waited reports whether it blocked.
func (w *Writer) waitForRateLimit(node string) (waited bool) {
	for {
		d := w.Delay(node)
		w.mu.Lock()
		none, skipRateLimit := len(w.queues[node].waiting) == 0, w.queues[node].skipRateLimit
		w.mu.Unlock()
		if d == 0 || none {
			return waited
		}
		waited = true
		t := w.RateLimit.clock.NewTimer(d)
		select {
		case <-t.C():
		case <-skipRateLimit:
			t.Stop()
			return waited
		case <-w.ctx.Done():
			t.Stop()
			return waited
		}
	}
}

// WriteProbe calls Client.WriteProbe with a timeout. The probe counts as a write to the node, but WriteProbe does not wait
// for the rate limit: call it when Delay is 0.
func (w *Writer) WriteProbe(ctx context.Context, n pool.NodePool, probe netip.Addr) (pool.NodePool, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	w.RateLimit.Spend(n.Name)
	after, err := w.pools.WriteProbe(ctx, n, probe)
	w.observePatch(1, err)
	return after, err
}

// Get calls Client.Get with a timeout.
func (w *Writer) Get(ctx context.Context, node string) (pool.NodePool, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return w.pools.Get(ctx, node)
}
