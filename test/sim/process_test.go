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

// process is one run of a scheduler or a controller. Its state is lost when it ends.
type process struct {
	w      *world
	name   string
	ctx    context.Context
	cancel context.CancelFunc
	// informers are the watches of the process.
	informers []*informer
	// cut is true while the process has no connection to the API server.
	cut bool
	// leads is true if the process has the lease, or has not noticed that it has lost the lease.
	leads bool
	// busySince returns the start of the oldest running reconcile; the current time if none runs.
	busySince func() time.Time
	// lost is true if the process has lost the lease to another process and has not noticed it.
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

// informer returns the informer of a kind, which the first call creates.
func (p *process) informer(k *kind) *informer {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	if i := slices.IndexFunc(p.informers, func(i *informer) bool { return i.of == k }); i >= 0 {
		return p.informers[i]
	}
	i := newInformer(p, k)
	p.informers = append(p.informers, i)
	// A process requests its informers in random order.
	slices.SortFunc(p.informers, func(a, b *informer) int { return compareText(a.of.gvk.Kind, b.of.gvk.Kind) })
	return i
}

// synced reports whether all informers have made their first list.
func (p *process) synced() bool {
	return !slices.ContainsFunc(p.informers, func(i *informer) bool { return !i.synced })
}

// kill ends the process while its goroutines are blocked. The requests that they wait for get no answer, but may still be
// executed.
func (p *process) kill() {
	p.cancel()
	p.leads = false
	p.w.waitIdle()
}

// isProduct reports whether a write was made by a process of the product.
func isProduct(by string) bool {
	return strings.HasPrefix(by, "controller") || strings.HasPrefix(by, "scheduler")
}
