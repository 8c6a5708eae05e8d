package ciliumpool

import (
	"context"
	"errors"
	"fmt"
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

	mu sync.Mutex
	// queues hold the requests that wait for the patch of their node. Key: the node. A key exists
	// exactly while a goroutine serves that node.
	queues map[string][]*queued
	served sync.WaitGroup
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
		queues: map[string][]*queued{},
	}
}

// Write returns when the request is fulfilled. An error of Decide comes back as it is, and it and
// ErrGone say that nothing was written for this request; after any other error it may have been,
// or may still be.
func (w *Writer) Write(ctx context.Context, r Request) error {
	q := &queued{Request: r, done: make(chan error, 1)}
	w.mu.Lock()
	_, served := w.queues[r.Node]
	w.queues[r.Node] = append(w.queues[r.Node], q)
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

// serve writes the requests for one node, batch by batch, until none waits.
func (w *Writer) serve(node string) {
	for {
		w.mu.Lock()
		batch := w.queues[node]
		if len(batch) == 0 {
			delete(w.queues, node)
			w.mu.Unlock()
			return
		}
		w.queues[node] = nil
		w.mu.Unlock()
		w.write(node, batch)
	}
}

// write brings one batch to an end: every request of it gets its answer.
func (w *Writer) write(node string, batch []*queued) {
	logger := klog.FromContext(w.ctx).WithValues("node", node)
	retry := w.retry
	n, known := w.known(node)
	for _, q := range batch {
		known = known && !q.Live
	}
	var err error
	for try := range writeTries {
		if try > 0 && !pause(w.ctx, retry.Step()) {
			err = context.Cause(w.ctx)
			break
		}
		if batch, err = w.try(node, n, known, batch); err == nil || errors.Is(err, ErrGone) {
			answer(batch, err)
			return
		}
		// Whatever went wrong, the next try has to know what is there now: the test that failed,
		// or the write that happened though its answer was lost.
		known = false
		logger.V(2).Info("Pool not written, will be tried again", "try", try+1, "requests", len(batch), "err", err)
	}
	answer(batch, fmt.Errorf("not written after %d tries: %w", writeTries, err))
}

// try makes one attempt and returns the requests that it does not answer itself.
func (w *Writer) try(node string, n pool.Node, known bool, batch []*queued) ([]*queued, error) {
	ctx, cancel := context.WithTimeout(w.ctx, writeTimeout)
	defer cancel()
	if !known {
		var err error
		if n, err = w.pools.Get(ctx, node); err != nil {
			return batch, err
		}
	}
	open, edits := decide(n, batch)
	if len(edits) == 0 {
		return nil, nil
	}
	_, err := w.pools.Edit(ctx, n, edits)
	return open, err
}

// decide asks each request in turn, each with the edits of those before it in place, and answers
// those that are fulfilled or can't be.
func decide(n pool.Node, batch []*queued) (open []*queued, edits []pool.Edit) {
	for _, q := range batch {
		wanted, err := q.Decide(n)
		if err != nil || len(wanted) == 0 {
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
