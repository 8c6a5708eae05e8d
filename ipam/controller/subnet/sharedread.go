// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"errors"
	"sync"
)

// sharedRead lets concurrent callers share the result of a read that begins after all of them have asked for it. Each claim
// lists all NodeSubnets at the API server after it has created its own. When many nodes join, claims wait for the list of
// another claim, and one further list is enough for all that wait. singleflight of golang.org/x/sync would not do: it also
// returns the result of a read that has already begun, which may not contain the NodeSubnet of the caller.
//
// The callers must not change the result.
type sharedRead[T any] struct {
	mu sync.Mutex
	// next is the read that has not begun; nil if nobody waits for one. last is the latest read that has begun; nil before the
	// first.
	next, last *pendingRead[T]
}

// pendingRead is a read with its result, which is valid once done is closed.
type pendingRead[T any] struct {
	done  chan struct{}
	value T
	err   error
}

// errNoResult is the error of a read that has panicked.
var errNoResult = errors.New("a concurrent read ended without a result")

// get returns the result of a read that begins after the call of get. The function of one of the callers reads for all.
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

// run waits for the end of the read before, which is nil if there was none, and then reads for all who have called get meanwhile.
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
