// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

const (
	// liveReaders bounds how many reads are under way at once.
	liveReaders = 4
	// liveTries bounds how often a read is tried for one set of questions, and liveTimeout each try.
	liveTries   = 3
	liveTimeout = 10 * time.Second
)

// live asks the API server for pools. A watch may be behind that of another kind, so that what it shows was
// perhaps so before a pod was gone, and is not any more. Nobody who asks waits: the read happens in the
// background, and begins after the question. There is one read of a node at a time, and it answers
// all who have asked about the node before it began. A read that fails for good is answered to nobody:
// who still wants to know asks again.
type live struct {
	ctx  context.Context
	read func(ctx context.Context, node string) (pool.Node, error)
	// retry is the pause between tries.
	retry wait.Backoff

	mu sync.Mutex
	// open are the questions whose read has not begun. Key: the node. Value: who asks, and what is done with the
	// answer.
	open map[string]map[string]func(pool.Node)
	// line are the nodes that have open questions and no read under way, in the order of these.
	line []string
	// reading are the nodes with a read under way.
	reading map[string]bool
	readers int
	served  sync.WaitGroup
}

// newLive makes a live that reads until ctx ends.
func newLive(ctx context.Context, read func(ctx context.Context, node string) (pool.Node, error)) *live {
	return &live{
		ctx:     ctx,
		read:    read,
		retry:   wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: liveTries},
		open:    map[string]map[string]func(pool.Node){},
		reading: map[string]bool{},
	}
}

// ask has then called, in a goroutine of its own, with the pool of a node as it is from now on. Whoever asks
// about a node again before the read has begun asks once.
func (l *live) ask(node, who string, then func(pool.Node)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil {
		return
	}
	if l.open[node] == nil {
		l.open[node] = map[string]func(pool.Node){}
		if !l.reading[node] {
			l.line = append(l.line, node)
		}
	}
	l.open[node][who] = then
	if len(l.line) > 0 && l.readers < liveReaders {
		l.readers++
		l.served.Go(l.serve)
	}
}

// wait returns when no read is under way. Call it after the context of newLive has ended.
func (l *live) wait() { l.served.Wait() }

// serve reads one node after the other until none is in the line.
func (l *live) serve() {
	for {
		l.mu.Lock()
		if len(l.line) == 0 || l.ctx.Err() != nil {
			l.readers--
			l.mu.Unlock()
			return
		}
		node := l.line[0]
		l.line = slices.Delete(l.line, 0, 1)
		questions := l.open[node]
		delete(l.open, node)
		l.reading[node] = true
		l.mu.Unlock()
		if n, ok := l.get(node); ok {
			for _, then := range questions {
				then(n)
			}
		}
		l.mu.Lock()
		delete(l.reading, node)
		if l.open[node] != nil {
			l.line = append(l.line, node)
		}
		l.mu.Unlock()
	}
}

// get reads a node; ok is false where it can't be read, or is not there.
func (l *live) get(node string) (n pool.Node, ok bool) {
	retry := l.retry
	for try := range liveTries {
		if try > 0 {
			select {
			case <-time.After(retry.Step()):
			case <-l.ctx.Done():
				return pool.Node{}, false
			}
		}
		ctx, cancel := context.WithTimeout(l.ctx, liveTimeout)
		n, err := l.read(ctx, node)
		cancel()
		if err == nil || errors.Is(err, ciliumpool.ErrGone) {
			return n, err == nil
		}
		loggerFrom(l.ctx).V(2).Info("CiliumNode not read", "node", node, "try", try+1, "err", err)
	}
	return pool.Node{}, false
}
