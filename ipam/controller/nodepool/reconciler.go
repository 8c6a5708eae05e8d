// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package nodepool

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"fixedip.io/fixedip/ipam/controller/internal/gather"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/nodepool"
	"fixedip.io/fixedip/ipam/core/nodeutil"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

const (
	// timerSlack makes up for timers that fire a little early.
	timerSlack = 10 * time.Millisecond
	// askAfter is how long an agent may take for its first report: to start, and two report intervals of 15 s, the default.
	askAfter = time.Minute
)

// Reconciler is the controller pool. A request names a node.
type Reconciler struct {
	Ledger *ledger.Ledger
	Writer *ciliumpool.Writer
	Cached client.Reader
	Live   client.Reader
	Events events.EventRecorder
	Clock  clock.PassiveClock
	Agents gather.Agents
	// Kinds are the kinds of workloads whose pods may have fixed addresses.
	Kinds identity.Kinds
	// RecordsSeen reports whether the ledger has all FixedIPs that existed at the start. Before that, a dynamic entry
	// could be added for an address that is reserved.
	RecordsSeen func() bool
	// Requests are the nodes whose pools the ledger has seen change, or whose agents have answered.
	Requests *source.Requests

	Watermark nodepool.Watermark
	CoolDown  time.Duration
	// StrictNodes selects the nodes whose pools have owned entries only.
	StrictNodes labels.Selector
	// StripManagedFields is true if CiliumNodes are kept free of managedFields.
	StripManagedFields bool

	mu sync.Mutex
	// nodes is what is remembered of each node. Key: the node.
	nodes map[string]*memory
}

// Setup adds the controller to a manager.
func (r *Reconciler) Setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("pool").
		WatchesRawSource(r.Requests.Source(r.RecordsSeen, func() []ctrl.Request {
			var all []ctrl.Request
			for _, n := range r.Ledger.Nodes() {
				all = append(all, source.ForName(n.Name))
			}
			return all
		})).
		Watches(&corev1.Node{}, nodeEvents()).
		Watches(&corev1.Pod{}, r.podEvents()).
		WithOptions(source.Workers(4)).
		Complete(r)
}

// Reconcile brings the pool of one node up to date, with at most one request to the writer.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	n, ok := r.Ledger.Node(req.Name)
	if !ok {
		r.mu.Lock()
		delete(r.nodes, req.Name)
		r.mu.Unlock()
		return ctrl.Result{}, nil
	}
	if len(n.Malformed) > 0 {
		r.warn(n, "MalformedPool", "ReadPool", "Entries that are not addresses or subnets are left alone: %s", strings.Join(n.Malformed, ", "))
	}
	if wait := r.Writer.Delay(n.Name); wait > 0 {
		// Changes until then are written together.
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	if len(n.PodCIDRs) == 0 {
		// The package subnet writes the subnets first, together with the first entries.
		return ctrl.Result{}, nil
	}
	s, err := r.gather(ctx, n)
	if err != nil {
		return ctrl.Result{}, err
	}
	if other, overlaps := r.Ledger.OverlapsWith(n.Name); overlaps {
		r.warn(n, "SubnetOverlap", "FillPool", "Subnets %v overlap those of node %s; nothing in them is handed out until one of the two is changed", n.PodCIDRs, other)
		return ctrl.Result{}, nil
	}
	// Most passes find nothing to do, by the caches alone.
	edits, marks, strip := s.Edits(n), s.Marks(n), r.shouldStrip(n)
	if s.NeedsLive(edits) {
		if err := r.readLive(ctx, n, s); err != nil {
			return ctrl.Result{}, err
		}
		edits = s.Edits(n)
	}
	if len(s.Overdue) > 0 {
		r.reportOverdue(ctx, n, s.Overdue)
	}
	if len(edits) > 0 || len(marks) > 0 || strip {
		switch err := r.write(ctx, n.Name, s, strip); {
		case errors.Is(err, ciliumpool.ErrGone):
			return ctrl.Result{}, nil
		case err != nil:
			return ctrl.Result{}, fmt.Errorf("bring the pool of node %s up to date: %w", n.Name, err)
		}
		klog.FromContext(ctx).V(2).Info("Pool brought up to date", "edits", len(edits), "handshakes", len(marks))
		n = n.With(edits)
	}
	r.reportShortages(n, s)
	next := s.NextCheck(n)
	if ask := r.askUnreported(n); !ask.IsZero() && (next.IsZero() || ask.Before(next)) {
		next = ask
	}
	if next.IsZero() {
		return ctrl.Result{}, nil
	}
	// The state is of the time at which this pass began. What has become due since then is due at once.
	return ctrl.Result{RequeueAfter: max(timerSlack, next.Sub(r.Clock.Now()))}, nil
}

// askUnreported asks the agent of a node if its first report takes too long: until then no address of the node is free for
// a claim. An agent that was not restarted when its CiliumNode was created again reports only when an allocation changes.
// askUnreported returns when to call it again; zero: there is no need.
func (r *Reconciler) askUnreported(n pool.NodePool) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.remember(n)
	if !n.Unreported || !n.HasPool {
		m.unreported = time.Time{}
		return time.Time{}
	}
	now := r.Clock.Now()
	if m.unreported.IsZero() {
		m.unreported = now
	}
	if due := m.unreported.Add(askAfter); now.Before(due) {
		return due
	}
	r.Agents.Ask(n.Name, "what do your pods use, CiliumNode "+n.UID, func() {})
	return time.Time{}
}

// FirstEntries decides which entries the first pool of a node needs, besides those that it has for addresses that are
// reserved or in use.
func (r *Reconciler) FirstEntries(ctx context.Context, n pool.NodePool) ([]pool.EntryChange, error) {
	s, err := r.gather(ctx, n)
	if err != nil {
		return nil, err
	}
	edits, _ := s.FirstEntries(n)
	return edits, nil
}

// reportOverdue reports that the agent of a node has not answered. It is called before the write that withdraws the marks:
// even if that write fails, the next one is not tried before another timeout.
func (r *Reconciler) reportOverdue(ctx context.Context, n pool.NodePool, overdue []netip.Addr) {
	r.restart(n, overdue)
	slices.SortFunc(overdue, netip.Addr.Compare)
	klog.FromContext(ctx).V(2).Info("The agent has not answered in release handshakes", "ips", overdue)
	r.warn(n, "ReleaseUnanswered", "ReleaseFromPool", "The agent has not answered in the release handshakes of %v; the handshakes are withdrawn, and started again if the pool still has too many entries", overdue)
}

// reportShortages reports entries that the pool lacks and that its subnets have no room for.
func (r *Reconciler) reportShortages(n pool.NodePool, s *nodepool.State) {
	_, shortages := s.FirstEntries(n)
	for _, short := range shortages {
		if s.Strict {
			r.warn(n, "SubnetFull", "FillPool", "The node is strict, %d addresses are needed for it and its pods, and subnets %v have none left", short.Count, n.PodCIDRs)
		} else {
			r.warn(n, "SubnetFull", "FillPool", "The pool lacks %d free %s addresses and subnets %v have none left", short.Count, short.Family, n.PodCIDRs)
		}
	}
}

// write brings the pool up to date. If a pod with the name of a removed unreserved entry was bound to the node during the
// write, the entry is restored.
func (r *Reconciler) write(ctx context.Context, node string, s *nodepool.State, strip bool) error {
	_, err := r.Writer.Apply(ctx, ciliumpool.Change{
		WriteRequest: ciliumpool.WriteRequest{
			Node:               node,
			Decide:             func(n pool.NodePool) ([]pool.EntryChange, error) { return s.SafeEdits(n), nil },
			Marks:              s.Marks,
			StripManagedFields: strip,
			// The decision relies on the whole pool if pods wait for an address: a scheduler may claim an address
			// for one of them at the same time.
			RequireUnchangedSpec: s.Strict || len(s.Waiting) > 0,
		},
		Confirm: func(ctx context.Context, written []pool.EntryChange) ([]pool.EntryChange, error) {
			removed := slices.DeleteFunc(slices.Clone(written), func(e pool.EntryChange) bool { return e.From == nil || !e.From.IsUnreserved() })
			if len(removed) == 0 {
				return nil, nil
			}
			pods, err := index.LivePodsOnNode(ctx, r.Live, node)
			if err != nil {
				return nil, err
			}
			return slices.DeleteFunc(removed, func(e pool.EntryChange) bool {
				return !slices.ContainsFunc(pods, func(pod corev1.Pod) bool {
					return pool.OwnerKey(pod.Namespace, pod.Name) == e.From.Owner && !podutil.IsTerminal(&pod)
				})
			}), nil
		},
	})
	if errors.Is(err, ciliumpool.ErrUndone) {
		return nil
	}
	return err
}

func (r *Reconciler) warn(n pool.NodePool, reason, action, note string, args ...any) {
	r.Events.Eventf(ciliumpool.Reference(n), nil, corev1.EventTypeWarning, reason, action, note, args...)
}

// nodeEvents requests the pool of a Node that appears, or whose labels, subnets, readiness or pod capacity change.
func nodeEvents() handler.Funcs {
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q source.Queue) {
			q.Add(source.ForName(e.Object.GetName()))
		},
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q source.Queue) {
			before, after := e.ObjectOld.(*corev1.Node), e.ObjectNew.(*corev1.Node)
			a, b := before.Status.Allocatable[corev1.ResourcePods], after.Status.Allocatable[corev1.ResourcePods]
			if !maps.Equal(before.Labels, after.Labels) || !a.Equal(b) || nodeutil.IsReady(before) != nodeutil.IsReady(after) || !slices.Equal(before.Spec.PodCIDRs, after.Spec.PodCIDRs) {
				q.Add(source.ForName(after.Name))
			}
		},
	}
}

// podEvents requests the pool of a pod's node if the pod may need an entry there, or needs it no longer. The end of a pod
// may also end the cooldown of its address.
func (r *Reconciler) podEvents() handler.Funcs {
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q source.Queue) {
			r.podChanged(ctx, e.Object.(*corev1.Pod), q)
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q source.Queue) {
			before, after := e.ObjectOld.(*corev1.Pod), e.ObjectNew.(*corev1.Pod)
			switch {
			case before.UID != after.UID, podutil.IsTerminal(before) != podutil.IsTerminal(after):
				r.podEnded(before, q)
				r.podEnded(after, q)
			case identity.PodNode(before) != identity.PodNode(after), !slices.Equal(before.Status.PodIPs, after.Status.PodIPs):
				r.podChanged(ctx, after, q)
				r.otherPools(after, q)
			}
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q source.Queue) { r.podEnded(e.Object.(*corev1.Pod), q) },
	}
}

func (r *Reconciler) podEnded(pod *corev1.Pod, q source.Queue) {
	if place := identity.PodNode(pod); place != "" {
		q.Add(source.ForName(place))
	}
	r.otherPools(pod, q)
}

// otherPools requests the pools of other nodes that have an entry with a pod's name. A scheduler may have claimed an entry
// on a strict node for a pod that was then bound to another node, or to none.
func (r *Reconciler) otherPools(pod *corev1.Pod, q source.Queue) {
	for _, h := range r.Ledger.Held(pool.OwnerKey(pod.Namespace, pod.Name)) {
		if h.Node != identity.PodNode(pod) {
			q.Add(source.ForName(h.Node))
		}
	}
}

// coolsDownFrom reports whether an address that was released from a pod's name is in cooldown on a node. It is left for
// the pod until the pod has another address.
func (r *Reconciler) coolsDownFrom(node string, pod *corev1.Pod) bool {
	n, _ := r.Ledger.Node(node)
	for _, e := range n.Entries {
		if e.CoolsDownFrom(pool.OwnerKey(pod.Namespace, pod.Name)) {
			return true
		}
	}
	return false
}

// podChanged requests the pool of a pod's node if the pod waits for an IP or had an address that is in cooldown there, and
// on a strict node in any case.
func (r *Reconciler) podChanged(ctx context.Context, pod *corev1.Pod, q source.Queue) {
	place := identity.PodNode(pod)
	if place == "" || pod.Spec.HostNetwork {
		return
	}
	var node corev1.Node
	err := r.Cached.Get(ctx, client.ObjectKey{Name: place}, &node)
	if err != nil || podutil.AwaitsIP(pod) || r.coolsDownFrom(place, pod) || r.StrictNodes.Matches(labels.Set(node.Labels)) {
		q.Add(source.ForName(place))
	}
}
