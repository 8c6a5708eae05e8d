package packed

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	toolscache "k8s.io/client-go/tools/cache"
)

// handlers hands what the informer within tells to all handlers of an informer. It is that informer's
// only one: each handler there has a buffer that grows with what it is behind and never shrinks, and
// one that is added late has all objects put into it at once. Here a handler that is behind holds up
// the others.
//
// A handler that is added late is told of all objects first, and afterwards maybe again of changes that
// these show already.
type handlers struct {
	codec codec
	// stored are the objects of the informer within.
	stored func() []any
	// synced tells whether all objects that stood at the start have been handed on.
	synced func() bool

	// mu is held while one event is handed to all.
	mu   sync.RWMutex
	list []*registration
}

// registration is one handler.
type registration struct {
	of *handlers
	to toolscache.ResourceEventHandler
	// events are those that wait for the handler.
	events chan func()
	gone   chan struct{}
	// expected are the objects that it is to be told of for having stood at the start, or when it was
	// added, and told those of which it was.
	expected, told atomic.Int64
}

// eventsWaiting is how far a handler may be behind before it holds up the others.
const eventsWaiting = 256

// add starts to tell a handler.
func (h *handlers) add(to toolscache.ResourceEventHandler) *registration {
	r := &registration{of: h, to: to, events: make(chan func(), eventsWaiting), gone: make(chan struct{})}
	h.mu.Lock()
	defer h.mu.Unlock()
	all := h.stored()
	r.expected.Add(int64(len(all)))
	h.list = append(h.list, r)
	go r.run(all)
	return r
}

// remove stops telling a handler. It may be told of one more event.
func (h *handlers) remove(handle toolscache.ResourceEventHandlerRegistration) error {
	r, ok := handle.(*registration)
	if !ok || r.of != h {
		return errors.New("the handler is none of this informer")
	}
	h.mu.RLock()
	found := slices.Contains(h.list, r)
	h.mu.RUnlock()
	if !found {
		return nil
	}
	// Whoever holds the lock for an event may be waiting for this handler.
	close(r.gone)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.list = slices.DeleteFunc(h.list, func(other *registration) bool { return other == r })
	return nil
}

// end lets all handlers go when the informer has ended.
func (h *handlers) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.list {
		close(r.gone)
	}
	h.list = nil
}

func (r *registration) run(all []any) {
	for i, obj := range all {
		select {
		case <-r.gone:
			return
		default:
		}
		r.to.OnAdd(r.of.codec.unpack(obj), true)
		r.told.Add(1)
		// It may go before all have been told of.
		all[i] = nil
	}
	for {
		select {
		case event := <-r.events:
			event()
		case <-r.gone:
			return
		}
	}
}

// HasSynced tells whether the handler was told of all objects that stood at the start.
func (r *registration) HasSynced() bool {
	return r.of.synced() && r.told.Load() >= r.expected.Load()
}

func (h *handlers) each(tell func(r *registration) func()) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for _, r := range h.list {
		select {
		case r.events <- tell(r):
		case <-r.gone:
		}
	}
}

// OnAdd, OnUpdate and OnDelete are called by the informer within, one at a time.
func (h *handlers) OnAdd(obj any, initial bool) {
	h.each(func(r *registration) func() {
		if !initial {
			return func() { r.to.OnAdd(h.codec.unpack(obj), false) }
		}
		r.expected.Add(1)
		return func() { r.to.OnAdd(h.codec.unpack(obj), true); r.told.Add(1) }
	})
}

func (h *handlers) OnUpdate(before, after any) {
	h.each(func(r *registration) func() {
		return func() { r.to.OnUpdate(h.codec.unpack(before), h.codec.unpack(after)) }
	})
}

func (h *handlers) OnDelete(obj any) {
	h.each(func(r *registration) func() {
		return func() {
			if tombstone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
				tombstone.Obj = h.codec.unpack(tombstone.Obj)
				r.to.OnDelete(tombstone)
				return
			}
			r.to.OnDelete(h.codec.unpack(obj))
		}
	})
}
