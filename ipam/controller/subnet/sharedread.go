// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"errors"
	"sync"
)

// sharedRead runs one read at a time. Callers that wait for the end of a read share the next read.
//
// Each claim creates a NodeSubnet and then lists all NodeSubnets at the API server. If many nodes join, several claims wait for a
// list, and one list that begins after their NodeSubnets were created is enough for these claims. The package singleflight of
// golang.org/x/sync does not guarantee that: it also returns the result of a read that began before the call, and that result may
// lack the NodeSubnet of the caller.
//
// The callers must not change the result.
type sharedRead[T any] struct {
	mu sync.Mutex
	// next is the read that has callers and has not begun; nil if there is no such read.
	next *pendingRead[T]
	// last is the read that began most recently; nil if no read has begun.
	last *pendingRead[T]
}

// pendingRead is a read with its result, which is valid once done is closed.
type pendingRead[T any] struct {
	done  chan struct{}
	value T
	err   error
}

// errNoResult is the error of a read that has panicked.
var errNoResult = errors.New("a concurrent read ended without a result")

// get returns the result of a read that begins after the call of get. If several callers share the read, only the function of the
// first caller is called. get waits for at most two reads, so each read has to end when its context ends.
func (s *sharedRead[T]) get(read func() (T, error)) (T, error) {
	s.mu.Lock()
	p, before, mine := s.next, s.last, s.next == nil
	if mine {
		p = &pendingRead[T]{done: make(chan struct{}), err: errNoResult}
		s.next = p
	}
	s.mu.Unlock()
	if mine {
		s.run(p, before, read)
	}
	<-p.done
	return p.value, p.err
}

// run waits for the end of before, the previous read, and then calls read for p. before is nil if p is the first read.
func (s *sharedRead[T]) run(p, before *pendingRead[T], read func() (T, error)) {
	if before != nil {
		<-before.done
	}
	s.mu.Lock()
	s.next, s.last = nil, p
	s.mu.Unlock()
	defer close(p.done)
	p.value, p.err = read()
}
