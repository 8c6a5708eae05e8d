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
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fixedip.io/fixedip/ipam/controller/config"
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

// Options are what a Reconciler needs.
type Options struct {
	Config config.Config
	Ledger *ledger.Ledger
	Writer *ciliumpool.Writer
	Cached client.Reader
	Live   client.Reader
	Events events.EventRecorder
	Clock  clock.Clock
	// Kinds are those whose pods may have fixed addresses.
	Kinds identity.Kinds
	// RecordsSeen reports whether the ledger has all FixedIPs that existed at the start: before that no pool may be
	// filled.
	RecordsSeen toolscache.InformerSynced
}

// Reconciler owns the release handshakes, and the entries of every pool that are dynamic, released,
// the node's own or an ordinary pod's. Those that are kept for an identity belong to the scheduler and
// to recordReconciler, subnets with their first entries to the package subnet.
type Reconciler struct {
	Options
	answers *answers

	mu sync.Mutex
	// untracked are the CiliumNodes that were once written to for the sake of their field tracking
	// alone. Key: the node. Value: the UID of its CiliumNode. Where somebody applies server-side it
	// comes back, and a second write would not be the last.
	untracked map[string]string
}

// New returns a Reconciler.
func New(o Options) *Reconciler {
	return &Reconciler{Options: o, answers: newAnswers(o.Clock), untracked: map[string]string{}}
}

// Request returns the request for the pool of a node.
func Request(node string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: node}}
}

// Setup adds the controller to a manager. nodes has the nodes whose pools the ledger reports as changed.
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

// Reconcile brings the pool of one node up to date, with one request to the writer at most.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	n, ok := r.Ledger.Node(req.Name)
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
	if wait := r.Writer.Delay(n.Name); wait > 0 {
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
	if other, disputed := r.Ledger.Disputed(n.Name); disputed {
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
		rested := max(restedSlack, next.Sub(r.Clock.Now()))
		if retry == 0 || rested < retry {
			retry = rested
		}
	}
	return reconcile.Result{RequeueAfter: retry}, nil
}

// giveUp says that the agent of a node is not waited for any longer, before the write that ends the handshakes:
// however that ends, the next one for their sake comes no sooner than after another wait.
func (r *Reconciler) giveUp(ctx context.Context, n pool.Node, late []turn) {
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
func (r *Reconciler) untracks(n pool.Node) bool {
	if !r.Config.StripManagedFields || !n.Tracked {
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
func (r *Reconciler) podHas(ctx context.Context, node string) func(netip.Addr) bool {
	return func(a netip.Addr) bool {
		pods, err := index.PodsWithIP(ctx, r.Cached, a)
		return err != nil || slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return p.Spec.NodeName == node })
	}
}

func (r *Reconciler) warn(n pool.Node, reason, action, note string, args ...any) {
	r.Events.Eventf(ciliumpool.Reference(n), nil, corev1.EventTypeWarning, reason, action, note, args...)
}
