// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package inuse

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/plugins/fixedip/cache"
)

const (
	// liveReaders bounds how many reads run at the same time.
	liveReaders = 4
	// liveTries bounds how often a read is tried for one set of questions, and liveTimeout each try.
	liveTries   = 3
	liveTimeout = 10 * time.Second
)

// liveReader reads pools from the API server, in the background. The watch of CiliumNodes may be behind that of
// pods, so that what it shows was true before a pod was gone. A read begins after the question, there is one read of
// a node at a time, and it answers all questions about the node that came before it. A read that fails is answered
// to nobody: whoever still needs the answer asks again.
type liveReader struct {
	ctx  context.Context
	read func(ctx context.Context, node string) (pool.Node, error)
	// retry is the pause between tries.
	retry wait.Backoff

	mu sync.Mutex
	// open are the questions whose read has not begun. Key: the node. Value: the asker, and what to do with the answer.
	open map[string]map[string]func(pool.Node)
	// line are the nodes with open questions and no read, in the order of the questions.
	line []string
	// reading are the nodes with a read.
	reading map[string]bool
	readers int
	served  sync.WaitGroup
}

// newLiveReader returns a liveReader that reads until ctx ends.
func newLiveReader(ctx context.Context, read func(ctx context.Context, node string) (pool.Node, error)) *liveReader {
	return &liveReader{
		ctx:     ctx,
		read:    read,
		retry:   wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: liveTries},
		open:    map[string]map[string]func(pool.Node){},
		reading: map[string]bool{},
	}
}

// ask has then called, in a goroutine, with the pool of a node as it is from now on. If the same asker asks about a
// node again before the read has begun, that is one question.
func (l *liveReader) ask(node, asker string, then func(pool.Node)) {
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
	l.open[node][asker] = then
	if len(l.line) > 0 && l.readers < liveReaders {
		l.readers++
		l.served.Go(l.serve)
	}
}

// wait returns when no read runs. Call it after the context of newLiveReader has ended.
func (l *liveReader) wait() { l.served.Wait() }

// serve reads one node after the other until there are no questions.
func (l *liveReader) serve() {
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

// get reads a node; ok is false if it cannot be read, or does not exist.
func (l *liveReader) get(node string) (n pool.Node, ok bool) {
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
		if err == nil || errors.Is(err, cache.ErrNodeGone) {
			return n, err == nil
		}
		klog.FromContext(l.ctx).V(2).Info("CiliumNode not read", "node", node, "try", try+1, "err", err)
	}
	return pool.Node{}, false
}
