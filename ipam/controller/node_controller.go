// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package controller

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
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/nodepool"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// restedSlack is for timers that end a little early.
const restedSlack = 10 * time.Millisecond

// nodeReconciler owns the release handshakes, and the entries of every pool that are dynamic, released,
// the node's own or an ordinary pod's. Those that are kept for an identity belong to the scheduler and
// to recordReconciler, subnets with their first entries to the package subnet.
type nodeReconciler struct {
	ledger *ledger.Ledger
	writer *ciliumpool.Writer
	cached client.Reader
	live   client.Reader
	events events.EventRecorder
	clock  clock.Clock
	cfg    Config
	// kinds are those whose pods may have fixed addresses.
	kinds identity.Kinds
	// recordsSeen tells whether the ledger knows what all FixedIPs keep: before that nothing may be
	// filled.
	recordsSeen toolscache.InformerSynced
	answers     *answers

	mu sync.Mutex
	// untracked are the CiliumNodes that were once written to for the sake of their field tracking
	// alone. Key: the node. Value: the UID of its CiliumNode. Where somebody applies server-side it
	// comes back, and a second write would not be the last.
	untracked map[string]string
}

func nodeRequest(node string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: node}}
}

func (r *nodeReconciler) setup(mgr manager.Manager, nodes *source.Feed) error {
	return builder.ControllerManagedBy(mgr).
		Named("pool").
		WatchesRawSource(nodes.Source(r.recordsSeen, func() []reconcile.Request {
			var all []reconcile.Request
			for _, n := range r.ledger.Nodes() {
				all = append(all, nodeRequest(n.Name))
			}
			return all
		})).
		Watches(&corev1.Node{}, nodeEvents()).
		Watches(&corev1.Pod{}, r.podEvents()).
		WithOptions(source.Workers(4)).
		Complete(r)
}

// Reconcile brings the pool of one node up to date, with one request to the writer at most.
func (r *nodeReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	n, ok := r.ledger.Node(req.Name)
	if !ok {
		r.mu.Lock()
		delete(r.untracked, req.Name)
		r.mu.Unlock()
		r.answers.forget(req.Name)
		return reconcile.Result{}, nil
	}
	if len(n.Malformed) > 0 {
		r.warn(n, "MalformedPool", "ReadPool", "Entries that are not addresses or subnets are left alone: %s", strings.Join(n.Malformed, ", "))
	}
	if wait := r.writer.Delay(n.Name); wait > 0 {
		// What the pool needs gathers meanwhile.
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	if len(n.PodCIDRs) == 0 {
		// The subnet comes first, with the first entries.
		return reconcile.Result{}, nil
	}
	d, err := r.dutyFor(ctx, n)
	if err != nil {
		return reconcile.Result{}, err
	}
	var retry time.Duration
	if other, disputed := r.ledger.Disputed(n.Name); disputed {
		r.warn(n, "SubnetOverlap", "FillPool", "Subnets %v overlap those of node %s; nothing in them is handed out until one of the two is changed", n.PodCIDRs, other)
		return reconcile.Result{}, nil
	}
	// What the ledger shows is looked at first: nothing to do is the rule.
	edits, marks, untrack := d.edits(n), d.marks(n), r.untracks(n)
	if slices.ContainsFunc(edits, takesAway) || len(nodepool.StaleUnreserved(n, d.stays)) > 0 {
		if err := d.lookLive(ctx, r, n); err != nil {
			return reconcile.Result{}, err
		}
		edits = d.edits(n)
	}
	if len(d.late) > 0 {
		r.giveUp(ctx, n, d.late)
	}
	if len(edits) > 0 || len(marks) > 0 || untrack {
		switch err := r.write(ctx, n, d, untrack); {
		case errors.Is(err, ciliumpool.ErrGone):
			return reconcile.Result{}, nil
		case err != nil:
			return reconcile.Result{}, fmt.Errorf("bring the pool of node %s up to date: %w", n.Name, err)
		}
		klog.FromContext(ctx).V(2).Info("Pool brought up to date", "edits", len(edits), "handshakes", len(marks))
		n = n.With(edits)
	}
	d.tell(r, n)
	// What came due since the look began is due at once: asked at another moment, it would be told neither here nor there.
	_, next := d.rested(n)
	if next = sooner(sooner(next, d.answerDue), d.lastBack(n)); !next.IsZero() {
		// Marks tell whole seconds, so that those of one second come due together.
		rested := max(restedSlack, next.Sub(r.clock.Now()))
		if retry == 0 || rested < retry {
			retry = rested
		}
	}
	return reconcile.Result{RequeueAfter: retry}, nil
}

// giveUp says that the agent of a node is not waited for any longer, before the write that ends the handshakes:
// however that ends, the next one for their sake comes no sooner than after another wait.
func (r *nodeReconciler) giveUp(ctx context.Context, n pool.Node, late []turn) {
	r.answers.giveUp(n, late)
	var addrs []netip.Addr
	for _, t := range late {
		addrs = append(addrs, t.addr)
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	klog.FromContext(ctx).V(2).Info("The agent has not answered in release handshakes", "ips", addrs)
	r.warn(n, "ReleaseUnanswered", "ReleaseFromPool", "The agent has not answered in the release handshakes of %v; they are ended, and what the pool still has too much of is asked for anew", addrs)
}

// untracks tells whether the CiliumNode is to be written to for its field tracking alone, and
// remembers that it was.
func (r *nodeReconciler) untracks(n pool.Node) bool {
	if !r.cfg.StripManagedFields || !n.Tracked {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.untracked[n.Name] == n.UID {
		return false
	}
	r.untracked[n.Name] = n.UID
	return true
}

// podHas tells whether a pod on the node has an address, as far as the cache of pods goes. It
// covers the time that the agent's word is late.
func (r *nodeReconciler) podHas(ctx context.Context, node string) func(netip.Addr) bool {
	return func(a netip.Addr) bool {
		pods, err := index.PodsWithIP(ctx, r.cached, a)
		return err != nil || slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return p.Spec.NodeName == node })
	}
}

func (r *nodeReconciler) warn(n pool.Node, reason, action, note string, args ...any) {
	r.events.Eventf(ciliumpool.Reference(n), nil, corev1.EventTypeWarning, reason, action, note, args...)
}
