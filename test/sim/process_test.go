// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// process is one run of a scheduler or a controller: what it knows goes with it.
type process struct {
	w      *world
	name   string
	ctx    context.Context
	cancel context.CancelFunc
	// informers are its watches.
	informers []*informer
	// cut off: nothing passes between it and the API server.
	cut bool
	// leads: it has, or believes to have, the lease.
	leads bool
	// busySince is when the oldest reconcile began that it is at.
	busySince func() time.Time
	// lost: the lease is another's, which it has yet to notice.
	lost bool
}

func (w *world) newProcess(role string) *process {
	w.processes++
	p := &process{w: w, name: fmt.Sprintf("%s-%d", role, w.processes), busySince: time.Now}
	p.ctx, p.cancel = context.WithCancel(w.ctx)
	return p
}

func (p *process) String() string { return p.name }

func (p *process) dead() bool { return p.ctx.Err() != nil }

// informer is the one of a kind.
func (p *process) informer(k *kind) *informer {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	if i := slices.IndexFunc(p.informers, func(i *informer) bool { return i.of == k }); i >= 0 {
		return p.informers[i]
	}
	i := newInformer(p, k)
	p.informers = append(p.informers, i)
	// A process asks for them in the order of a map.
	slices.SortFunc(p.informers, func(a, b *informer) int { return compareText(a.of.gvk.Kind, b.of.gvk.Kind) })
	return i
}

// synced reports whether all that existed when the process started has been seen.
func (p *process) synced() bool {
	return !slices.ContainsFunc(p.informers, func(i *informer) bool { return !i.synced })
}

// kill ends it at whatever instruction it is.
func (p *process) kill() {
	p.cancel()
	p.leads = false
	p.w.settleDown()
}

// isProduct reports whether a write was made by a process of the product.
func isProduct(by string) bool {
	return strings.HasPrefix(by, "controller") || strings.HasPrefix(by, "scheduler")
}
