package ciliumpool

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"fixedip.io/fixedip/ipam/core/pool"
)

// ErrTaken: the address has another holder. Nothing was written for this claim; decide anew.
var ErrTaken = errors.New("the address has another holder")

const (
	// claimTries bounds the writes for one batch. A lost race costs one try, and so does an API
	// server that can't be reached.
	claimTries = 6
	// claimTimeout bounds one try: a read and a patch.
	claimTimeout = 10 * time.Second
)

// Request asks for addresses of one node for one owner: all of them or none.
type Request struct {
	Node  string
	Addrs []netip.Addr
	Entry pool.Entry
}

// Claims writes claims into pools. Claims for one node that wait together go together in one
// patch, and at most one patch a node is under way: the API server retries conflicting patches
// itself, so that a burst of single ones makes each of them slow, and every agent is told of every
// write.
//
// A claim that loses its address does not take the others of its patch with it.
type Claims struct {
	ctx   context.Context
	pools *Pools
	// known is the last known pool of a node, a hint that saves a read.
	known func(node string) (pool.Node, bool)
	// retry is the pause between tries.
	retry wait.Backoff

	mu sync.Mutex
	// queues hold the claims that wait for the patch of their node. Key: the node. A key exists
	// exactly while a writer goroutine serves that node.
	queues  map[string][]*waiting
	writers sync.WaitGroup
}

type waiting struct {
	Request
	// done gets the result, once. It has room for it, so that a writer never waits for a reader.
	done chan error
}

// NewClaims makes Claims that write until ctx ends. known may answer from a cache.
func NewClaims(ctx context.Context, pools *Pools, known func(node string) (pool.Node, bool)) *Claims {
	return &Claims{
		ctx:    ctx,
		pools:  pools,
		known:  known,
		retry:  wait.Backoff{Duration: 50 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: claimTries},
		queues: map[string][]*waiting{},
	}
}

// Write claims the addresses and returns when they are the owner's in the pool (also where they
// were before). ErrTaken and ErrGone say that this claim was not written; after any other error it
// may have been, or may still be.
func (c *Claims) Write(ctx context.Context, r Request) error {
	w := &waiting{Request: r, done: make(chan error, 1)}
	c.mu.Lock()
	_, served := c.queues[r.Node]
	c.queues[r.Node] = append(c.queues[r.Node], w)
	if !served {
		c.writers.Go(func() { c.serve(r.Node) })
	}
	c.mu.Unlock()
	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("claim of %v on CiliumNode %s: %w", r.Addrs, r.Node, context.Cause(ctx))
	}
}

// Wait returns when no write is under way. Call it after the context of NewClaims has ended.
func (c *Claims) Wait() { c.writers.Wait() }

// serve writes the claims of one node, batch by batch, until none waits.
func (c *Claims) serve(node string) {
	for {
		c.mu.Lock()
		batch := c.queues[node]
		if len(batch) == 0 {
			delete(c.queues, node)
			c.mu.Unlock()
			return
		}
		c.queues[node] = nil
		c.mu.Unlock()
		c.write(node, batch)
	}
}

// write brings one batch to an end: every claim of it gets its answer.
func (c *Claims) write(node string, batch []*waiting) {
	logger := klog.FromContext(c.ctx).WithValues("node", node)
	retry := c.retry
	n, known := c.known(node)
	var err error
	for try := range claimTries {
		if try > 0 && !pause(c.ctx, retry.Step()) {
			err = context.Cause(c.ctx)
			break
		}
		ctx, cancel := context.WithTimeout(c.ctx, claimTimeout)
		if !known {
			n, err = c.pools.Get(ctx, node)
			known = err == nil
		}
		if known {
			var edits []pool.Edit
			batch, edits = settle(n, batch)
			if len(edits) == 0 {
				cancel()
				return
			}
			_, err = c.pools.Edit(ctx, n, edits)
			// Whatever went wrong, the next try has to know what is there now: the test that
			// failed, or the write that happened though its answer was lost.
			known = false
		}
		cancel()
		switch {
		case err == nil:
			answer(batch, nil)
			return
		case errors.Is(err, ErrGone):
			answer(batch, err)
			return
		}
		logger.V(2).Info("Claim not written, will be tried again", "try", try+1, "claims", len(batch), "err", err)
	}
	answer(batch, fmt.Errorf("claim not written after %d tries: %w", claimTries, err))
}

// settle answers the claims that n decides already and makes the edits for the others.
func settle(n pool.Node, batch []*waiting) (open []*waiting, edits []pool.Edit) {
	// taken are the addresses that an earlier claim of the batch wants. Key: the address. Value:
	// its owner.
	taken := map[netip.Addr]string{}
	for _, w := range batch {
		mine, err := want(n, w.Request, taken)
		switch {
		case err != nil:
			w.done <- err
		case len(mine) == 0:
			w.done <- nil
		default:
			for _, e := range mine {
				taken[e.Addr] = w.Entry.Owner
			}
			open = append(open, w)
			edits = append(edits, mine...)
		}
	}
	return open, edits
}

// want lists the edits that a claim needs; none where all its entries stand.
func want(n pool.Node, r Request, taken map[netip.Addr]string) ([]pool.Edit, error) {
	var edits []pool.Edit
	for _, a := range r.Addrs {
		now, exists := n.Entries[a]
		_, released := now.ReleasedAt()
		holder, wanted := taken[a]
		switch {
		case exists && now.Owner == r.Entry.Owner:
			continue
		case !n.Home(a):
			return nil, fmt.Errorf("%s is not in a subnet of node %s (%v): %w", a, n.Name, n.PodCIDRs, ErrTaken)
		case wanted:
			return nil, fmt.Errorf("%s on node %s is being claimed for %s: %w", a, n.Name, holder, ErrTaken)
		case exists && !released:
			return nil, fmt.Errorf("%s on node %s belongs to %q: %w", a, n.Name, now.Owner, ErrTaken)
		case n.InUse(a) && n.Used[a] != r.Entry.Owner:
			return nil, fmt.Errorf("%s on node %s is used by %q: %w", a, n.Name, n.Used[a], ErrTaken)
		}
		edits = append(edits, n.Set(a, r.Entry))
	}
	return edits, nil
}

func answer(batch []*waiting, err error) {
	for _, w := range batch {
		w.done <- err
	}
}

// pause waits for d or the end of ctx, and tells which.
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
