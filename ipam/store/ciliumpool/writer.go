// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ciliumpool

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"fixedip.io/fixedip/ipam/core/pool"
)

const (
	// writeTries bounds the writes for one batch. A lost race costs one try, and so does an API
	// server that can't be reached.
	writeTries = 6
	// writeTimeout bounds one try: a read and a patch.
	writeTimeout = 10 * time.Second
)

// Request is a wish for the pool of one node. Decide makes the edits that fulfil it from the pool
// as it is: none where it is fulfilled already, an error where it can't be. It may be asked several
// times, and has to answer from its argument alone.
type Request struct {
	Node   string
	Decide func(n pool.Node) ([]pool.Edit, error)
	// Live asks that the decision be made from the pool as the API server has it, never from what
	// a watch has shown.
	Live bool
	// Whole asks that nothing be written unless the pool as a whole is what the decision was made
	// from, and not the edited entries alone.
	Whole bool
	// Marks makes the marks of the release handshake that go with the request, from the pool after
	// its edits; nil: none. It is held to the same as Decide.
	Marks func(n pool.Node) []pool.Mark
	// Untrack asks for a write where nothing else is to be written, for the sake of the field tracking
	// (see Pools.Untrack).
	Untrack bool
	// Urgent asks not to be kept waiting by the pace.
	Urgent bool
}

// Writer writes requests into pools. Requests for one node that wait together go together in one
// patch, and at most one patch a node is under way: the API server retries conflicting patches
// itself, so that a burst of single ones makes each of them slow, and every agent is told of every
// write. A request that can't be fulfilled does not take the others of its patch with it.
type Writer struct {
	ctx   context.Context
	pools *Pools
	// known is the pool of a node as a watch last showed it: it saves a read.
	known func(node string) (pool.Node, bool)
	// retry is the pause between tries.
	retry wait.Backoff
	// observer is told of every patch; nil: nobody is.
	observer Observer
	// pace spreads the writes for each node; nil: they are not spread.
	pace *Pace
	// onWrite is called with the answer of every patch; nil: it is not.
	onWrite func(pool.Node)

	mu sync.Mutex
	// queues hold the requests that wait for the patch of their node. Key: the node. A key exists
	// exactly while a goroutine serves that node.
	queues map[string]*queue
	// written are the pools that our own writes left and that known does not show yet. Key: the node.
	// They are few: one leaves when the watch has caught up with it, or has lost the node.
	written map[string]pool.Node
	served  sync.WaitGroup
}

// queue is guarded by the Writer's mu.
type queue struct {
	waiting []*queued
	// urgent is closed when one of those that wait is urgent.
	urgent chan struct{}
}

func newQueue() *queue { return &queue{urgent: make(chan struct{})} }

func (q *queue) add(r *queued) {
	if r.Urgent && !slices.ContainsFunc(q.waiting, func(w *queued) bool { return w.Urgent }) {
		close(q.urgent)
	}
	q.waiting = append(q.waiting, r)
}

type queued struct {
	Request
	// done gets the answer, once. It has room for it: nobody may be waiting any more.
	done chan error
}

// NewWriter makes a Writer that works until ctx ends.
func NewWriter(ctx context.Context, pools *Pools, known func(node string) (pool.Node, bool)) *Writer {
	return &Writer{
		ctx:    ctx,
		pools:  pools,
		known:  known,
		retry:  wait.Backoff{Duration: 50 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: writeTries},
		queues: map[string]*queue{},

		written: map[string]pool.Node{},
	}
}

// OnWrite sets a function that is called with the pool as the API server returned it for each patch, before the
// requests of that patch are answered: for Ledger.ObserveWrite. Call OnWrite before the first Write.
func (w *Writer) OnWrite(f func(n pool.Node)) { w.onWrite = f }

func (w *Writer) wrote(n pool.Node) {
	if w.onWrite != nil {
		w.onWrite(n)
	}
}

// Write returns when the request is fulfilled. An error of Decide comes back as it is; it, ErrGone
// and ErrRefused say that nothing was written for this request; after any other error it may have
// been, or may still be.
func (w *Writer) Write(ctx context.Context, r Request) error {
	q := &queued{Request: r, done: make(chan error, 1)}
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

// Wait returns when no write is under way. Call it after the context of NewWriter has ended.
func (w *Writer) Wait() { w.served.Wait() }

// serve writes the requests for one node, batch by batch, until none waits. Each batch starts from
// the pool that the last one left, which the watch may not have shown yet.
func (w *Writer) serve(node string) {
	n, known := w.latest(node)
	for {
		if w.dwell(node) {
			// Much may have happened meanwhile.
			known = false
		}
		w.mu.Lock()
		batch := w.queues[node].waiting
		if len(batch) == 0 {
			delete(w.queues, node)
			w.keep(n, known)
			w.mu.Unlock()
			return
		}
		w.queues[node] = newQueue()
		w.mu.Unlock()
		if shown, ok := w.known(node); ok && known && n.OlderThan(shown) {
			// The request may have been made because of what the watch shows.
			n = shown
		}
		n, known = w.write(node, batch, n, known)
	}
}

// latest is the newest that is known of a node's pool: what the watch shows, or what our own last
// write left, if that is newer.
func (w *Writer) latest(node string) (pool.Node, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if last, ok := w.written[node]; ok && w.ahead(last) {
		return last, true
	}
	return w.known(node)
}

// keep notes the pool that the last batch left, and forgets those that the watch shows by now.
// Called under mu.
func (w *Writer) keep(n pool.Node, known bool) {
	if known {
		w.written[n.Name] = n
	}
	maps.DeleteFunc(w.written, func(_ string, last pool.Node) bool { return !w.ahead(last) })
}

// ahead tells whether the watch shows an older spec of the same CiliumNode.
func (w *Writer) ahead(last pool.Node) bool {
	shown, ok := w.known(last.Name)
	return ok && shown.UID == last.UID && shown.Generation < last.Generation
}

// write brings one batch to an end: every request of it gets its answer. The result is the pool
// after it, if that is known.
func (w *Writer) write(node string, batch []*queued, n pool.Node, known bool) (pool.Node, bool) {
	logger := klog.FromContext(w.ctx).WithValues("node", node)
	retry := w.retry
	for _, q := range batch {
		known = known && !q.Live
	}
	var err error
	for try := range writeTries {
		if try > 0 && !pause(w.ctx, retry.Step()) {
			err = context.Cause(w.ctx)
			break
		}
		var after pool.Node
		if batch, after, err = w.try(node, n, known, batch); err == nil || errors.Is(err, ErrGone) {
			answer(batch, err)
			return after, err == nil
		}
		if errors.Is(err, ErrRefused) {
			answer(batch, err)
			return pool.Node{}, false
		}
		// Whatever went wrong, the next try has to know what is there now: the test that failed,
		// or the write that happened though its answer was lost.
		known = false
		logger.V(2).Info("Pool not written, will be tried again", "try", try+1, "requests", len(batch), "err", err)
	}
	answer(batch, fmt.Errorf("not written after %d tries: %w", writeTries, err))
	return pool.Node{}, false
}

// try makes one attempt. It returns the requests that it does not answer itself, and the pool after
// it.
func (w *Writer) try(node string, n pool.Node, known bool, batch []*queued) ([]*queued, pool.Node, error) {
	ctx, cancel := context.WithTimeout(w.ctx, writeTimeout)
	defer cancel()
	if !known {
		var err error
		if n, err = w.pools.Get(ctx, node); err != nil {
			return batch, n, err
		}
	}
	open, edits := decide(n, batch)
	if len(edits) > 0 || slices.ContainsFunc(open, func(q *queued) bool { return q.Untrack && n.Tracked }) {
		edit := w.pools.Edit
		if slices.ContainsFunc(open, func(q *queued) bool { return q.Whole }) {
			edit = w.pools.EditWhole
		}
		w.spend(node)
		after, err := edit(ctx, n, edits)
		w.observe(len(open), err)
		if err != nil {
			return open, after, err
		}
		w.wrote(after)
		n = after
	}
	marks := markAll(n, open)
	if len(marks) == 0 {
		return open, n, nil
	}
	w.spend(node)
	after, err := w.pools.Mark(ctx, n, marks)
	if err == nil {
		w.wrote(after)
	}
	return open, after, err
}

// markAll gathers the marks of all requests, each from the node with those of the others in place.
func markAll(n pool.Node, open []*queued) (marks []pool.Mark) {
	for _, q := range open {
		if q.Marks == nil {
			continue
		}
		wanted := q.Marks(n)
		n = n.WithMarks(wanted)
		marks = append(marks, wanted...)
	}
	return marks
}

// decide asks each request in turn, each with the edits of those before it in place, and answers
// those that are fulfilled or can't be. One that may have more to write than edits stays open.
func decide(n pool.Node, batch []*queued) (open []*queued, edits []pool.Edit) {
	for _, q := range batch {
		wanted, err := q.Decide(n)
		if err != nil || len(wanted) == 0 && q.Marks == nil && !q.Untrack {
			q.done <- err
			continue
		}
		n = n.With(wanted)
		open = append(open, q)
		edits = append(edits, wanted...)
	}
	return open, edits
}

func answer(batch []*queued, err error) {
	for _, q := range batch {
		q.done <- err
	}
}

// pause waits for d or the end of ctx, and tells whether it was d.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
