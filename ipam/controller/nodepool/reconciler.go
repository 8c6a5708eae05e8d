// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package nodepool

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/nodepool"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// timerSlack makes up for timers that fire a little early.
const timerSlack = 10 * time.Millisecond

// Options are what a Reconciler needs.
type Options struct {
	Ledger *ledger.Ledger
	Writer *ciliumpool.Writer
	Cached client.Reader
	Live   client.Reader
	Events events.EventRecorder
	Clock  clock.Clock
	// Kinds are the kinds of workloads whose pods may have fixed addresses.
	Kinds identity.Kinds
	// RecordsSeen reports whether the ledger has all FixedIPs that existed at the start. Before that, a dynamic entry
	// could be added for an address that is reserved.
	RecordsSeen toolscache.InformerSynced

	Watermark nodepool.Watermark
	CoolDown  time.Duration
	// StrictNodes selects the nodes whose pools have owned entries only.
	StrictNodes labels.Selector
	// StripManagedFields is true if CiliumNodes are kept free of managedFields.
	StripManagedFields bool
}

// Reconciler is the controller pool. A request names a node.
type Reconciler struct {
	Options
	timeouts *handshakeTimeouts

	mu sync.Mutex
	// stripped are the CiliumNodes that were once written only to remove their managedFields. Key: the node. Value: the
	// UID of its CiliumNode. If another client applies server-side the fields return, and a second write would not be
	// the last.
	stripped map[string]string
}

// New returns a Reconciler.
func New(o Options) *Reconciler {
	return &Reconciler{Options: o, timeouts: newHandshakeTimeouts(o.Clock), stripped: map[string]string{}}
}

// Request returns the request for the pool of a node.
func Request(node string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: node}}
}

// Setup adds the controller to a manager. nodes reports the nodes whose pools the ledger has seen change.
func (r *Reconciler) Setup(mgr manager.Manager, nodes *source.Feed) error {
	return builder.ControllerManagedBy(mgr).
		Named("pool").
		WatchesRawSource(nodes.Source(r.RecordsSeen, func() []reconcile.Request {
			var all []reconcile.Request
			for _, n := range r.Ledger.Nodes() {
				all = append(all, Request(n.Name))
			}
			return all
		})).
		Watches(&corev1.Node{}, nodeEvents()).
		Watches(&corev1.Pod{}, r.podEvents()).
		WithOptions(source.Workers(4)).
		Complete(r)
}

// Reconcile brings the pool of one node up to date, with at most one request to the writer.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	n, ok := r.Ledger.Node(req.Name)
	if !ok {
		r.mu.Lock()
		delete(r.stripped, req.Name)
		r.mu.Unlock()
		r.timeouts.forget(req.Name)
		return reconcile.Result{}, nil
	}
	if len(n.Malformed) > 0 {
		r.warn(n, "MalformedPool", "ReadPool", "Entries that are not addresses or subnets are left alone: %s", strings.Join(n.Malformed, ", "))
	}
	if wait := r.Writer.Delay(n.Name); wait > 0 {
		// Changes until then are written together.
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	if len(n.PodCIDRs) == 0 {
		// The package subnet writes the subnets first, together with the first entries.
		return reconcile.Result{}, nil
	}
	s, err := r.gather(ctx, n)
	if err != nil {
		return reconcile.Result{}, err
	}
	if other, overlaps := r.Ledger.OverlapsWith(n.Name); overlaps {
		r.warn(n, "SubnetOverlap", "FillPool", "Subnets %v overlap those of node %s; nothing in them is handed out until one of the two is changed", n.PodCIDRs, other)
		return reconcile.Result{}, nil
	}
	// Most passes find nothing to do, by the caches alone.
	edits, marks, strip := s.Edits(n), s.Marks(n), r.shouldStrip(n)
	if s.NeedsLive(n, edits) {
		if err := r.readLive(ctx, n, s); err != nil {
			return reconcile.Result{}, err
		}
		edits = s.Edits(n)
	}
	if len(s.Overdue) > 0 {
		r.reportOverdue(ctx, n, s.Overdue)
	}
	if len(edits) > 0 || len(marks) > 0 || strip {
		switch err := r.write(ctx, n.Name, s, strip); {
		case errors.Is(err, ciliumpool.ErrGone):
			return reconcile.Result{}, nil
		case err != nil:
			return reconcile.Result{}, fmt.Errorf("bring the pool of node %s up to date: %w", n.Name, err)
		}
		klog.FromContext(ctx).V(2).Info("Pool brought up to date", "edits", len(edits), "handshakes", len(marks))
		n = n.With(edits)
	}
	r.reportShortages(n, s)
	next := s.NextCheck(n)
	if next.IsZero() {
		return reconcile.Result{}, nil
	}
	// The state is of the time at which this pass began. What has become due since then is due at once.
	return reconcile.Result{RequeueAfter: max(timerSlack, next.Sub(r.Clock.Now()))}, nil
}

// FirstEntries decides which entries the first pool of a node needs, besides those that it has for addresses that are
// reserved or in use.
func (r *Reconciler) FirstEntries(ctx context.Context, n pool.NodePool) ([]pool.EntryChange, error) {
	s, err := r.gather(ctx, n)
	if err != nil {
		return nil, err
	}
	return s.FirstEntries(n), nil
}

// reportOverdue reports that the agent of a node has not answered. It is called before the write that withdraws the marks:
// even if that write fails, the next one is not tried before another timeout.
func (r *Reconciler) reportOverdue(ctx context.Context, n pool.NodePool, overdue []netip.Addr) {
	r.timeouts.restart(n, overdue)
	slices.SortFunc(overdue, netip.Addr.Compare)
	klog.FromContext(ctx).V(2).Info("The agent has not answered in release handshakes", "ips", overdue)
	r.warn(n, "ReleaseUnanswered", "ReleaseFromPool", "The agent has not answered in the release handshakes of %v; the handshakes are withdrawn, and started again if the pool still has too many entries", overdue)
}

// reportShortages reports entries that the pool lacks and that its subnets have no room for.
func (r *Reconciler) reportShortages(n pool.NodePool, s *nodepool.State) {
	for _, short := range s.Shortages(n) {
		if s.Strict {
			r.warn(n, "SubnetFull", "FillPool", "The node is strict, %d addresses are needed for it and its pods, and subnets %v have none left", short.Count, n.PodCIDRs)
		} else {
			r.warn(n, "SubnetFull", "FillPool", "The pool lacks %d free %s addresses and subnets %v have none left", short.Count, short.Family, n.PodCIDRs)
		}
	}
}

// shouldStrip reports whether the CiliumNode has to be written only to remove its managedFields, and remembers that it
// was.
func (r *Reconciler) shouldStrip(n pool.NodePool) bool {
	if !r.StripManagedFields || !n.Tracked {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stripped[n.Name] == n.UID {
		return false
	}
	r.stripped[n.Name] = n.UID
	return true
}

func (r *Reconciler) warn(n pool.NodePool, reason, action, note string, args ...any) {
	r.Events.Eventf(ciliumpool.Reference(n), nil, corev1.EventTypeWarning, reason, action, note, args...)
}
