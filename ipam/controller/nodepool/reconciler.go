// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package nodepool

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/configuration"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/nodepool"
	"fixedip.io/fixedip/ipam/core/nodeutil"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// timerSlack is the shortest requeue delay: a timer may fire a little before the time for which it was set.
const timerSlack = 10 * time.Millisecond

// Reconciler is the controller "pool", which maintains the pools of nodes. A request names a node.
type Reconciler struct {
	Ledger *ledger.Ledger
	Writer *ciliumpool.Writer
	Cached client.Reader
	Live   client.Reader
	Events events.EventRecorder
	Clock  clock.PassiveClock
	Agents gather.Agents
	// Cilium contains the settings of Cilium, which determine how long the controller waits for agents.
	Cilium configuration.CiliumSettings
	// Kinds are the kinds of workloads whose pods may have fixed addresses.
	Kinds identity.Kinds
	// RecordsSeen reports whether the ledger has all FixedIPs that existed at the start. Before that, a dynamic entry
	// could be added for an address that is reserved.
	RecordsSeen func() bool
	// Requests receives the nodes whose pools or reserved addresses have changed in the ledger, and those whose agents have
	// answered a barrier.
	Requests *source.Requests

	Watermark nodepool.Watermark
	Cooldown  time.Duration
	// StrictNodes selects the nodes whose pools have no dynamic entries.
	StrictNodes labels.Selector
	// StripManagedFields is true if the controller removes the managedFields of CiliumNodes.
	StripManagedFields bool

	mu sync.Mutex
	// nodes contains the memory of each node. Key: the name of the node.
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
		r.warn(n, "MalformedPool", "ReadPool", "Invalid keys of spec.ipam.pool or elements of spec.ipam.podCIDRs are ignored: %s; correct or remove them", first(n.Malformed))
	}
	if wait := r.Writer.Delay(n.Name); wait > 0 {
		// All changes until the rate limit allows a write are written together.
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
		r.warn(n, "SubnetOverlap", "FillPool", "Subnets of this node (%s) overlap those of node %s; no fixed IP in them is assigned and the pool is not refilled until the overlap ends; %s", pool.JoinSubnets(n.PodCIDRs), other, pool.OverlapHelp)
		return ctrl.Result{}, nil
	}
	// Decide from the caches first: they show in most passes that nothing has to be done.
	edits, handshakes, strip := s.Edits(n), n.Withdrawable(), r.shouldStrip(n)
	if s.NeedsLive(edits) {
		if err := r.readLive(ctx, n, s); err != nil {
			return ctrl.Result{}, err
		}
		edits = s.Edits(n)
	}
	if len(edits) > 0 || len(handshakes) > 0 || strip {
		switch err := r.write(ctx, n.Name, s, strip); {
		case errors.Is(err, ciliumpool.ErrGone):
			return ctrl.Result{}, nil
		case err != nil:
			return ctrl.Result{}, fmt.Errorf("bring the pool of node %s up to date: %w", n.Name, err)
		}
		klog.FromContext(ctx).V(2).Info("Pool brought up to date", "edits", len(edits), "withdrawnHandshakes", address.Strings(handshakes))
		if strip {
			r.hasStripped(n)
		}
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
	// next may be in the past by the end of this pass. The next pass is due at once in that case.
	return ctrl.Result{RequeueAfter: max(timerSlack, next.Sub(r.Clock.Now()))}, nil
}

// askUnreported asks the agent of a node for a report if its first report does not arrive within FirstReportTimeout: before
// the first report, no address of the node is free for a claim. An agent that was not restarted when its CiliumNode was
// created again reports only when an allocation changes. askUnreported returns the time at which to call it again, or the
// zero time if that is not necessary.
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
	if due := m.unreported.Add(r.Cilium.FirstReportTimeout()); now.Before(due) {
		return due
	}
	r.Agents.Ask(n.Name, "first report of CiliumNode "+n.UID, func() {})
	return time.Time{}
}

// FirstEntries returns the edits that complete the first pool of a node. n must already have the entries of reserved
// addresses and of addresses in use; the edits add the dynamic entries or, on a strict node, the entries of the node itself
// and of its pods.
func (r *Reconciler) FirstEntries(ctx context.Context, n pool.NodePool) ([]pool.EntryChange, error) {
	s, err := r.gather(ctx, n)
	if err != nil {
		return nil, err
	}
	edits, _ := s.FirstEntries(n)
	return edits, nil
}

// reportShortages records an event for each shortage: the pool lacks entries, and the subnets have no free addresses for
// them. Events with the same reason and action on the same object are merged into one with the note of the first. So the
// action names the family.
func (r *Reconciler) reportShortages(n pool.NodePool, s *nodepool.State) {
	_, shortages := s.FirstEntries(n)
	for _, short := range shortages {
		if s.Strict {
			r.warn(n, "SubnetFull", "FillPool", "The node is strict, and its subnets (%s) have too few free IPs for the node itself and its pods; missing IPs: %d; pods without an IP cannot start before an IP is released", pool.JoinSubnets(n.PodCIDRs), short.Count)
		} else {
			r.warn(n, "SubnetFull", "FillPool"+short.Family.String(), "The pool has too few free dynamic %s entries, and no %[1]s subnet of the node has a free IP (podCIDRs: %[2]s); missing entries: %[3]d; pods without a fixed IP may be unable to start before an IP is released", short.Family, pool.JoinSubnets(n.PodCIDRs), short.Count)
		}
	}
}

// write writes the edits of s with one call of the writer, withdraws handshakes, and removes managedFields if strip is true.
// If it removes the entry of an unreserved pod and then finds that pod bound to the node and not terminal, it restores the
// entry.
func (r *Reconciler) write(ctx context.Context, node string, s *nodepool.State, strip bool) error {
	_, err := r.Writer.Apply(ctx, ciliumpool.Change{
		WriteRequest: ciliumpool.WriteRequest{
			Node: node,
			Decide: func(n pool.NodePool) ([]pool.EntryChange, error) {
				edits := s.SafeEdits(n)
				r.withdrawing(n, edits)
				return edits, nil
			},
			WithdrawHandshakes: true,
			StripManagedFields: strip,
			// On a strict node, and while pods wait for an IP, the decision depends on the whole pool: a scheduler may
			// claim an address for such a pod at the same time.
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
					return pool.OwnerKey(pod.Namespace, pod.Name) == e.From.Owner() && !podutil.IsTerminal(&pod)
				})
			}), nil
		},
	})
	if errors.Is(err, ciliumpool.ErrUndone) {
		return nil
	}
	return err
}

// maxNames is the maximum number of addresses or other texts that an event lists, so that its note is not too long.
const maxNames = 8

// first joins the first maxNames of texts and adds the number of the others.
func first(texts []string) string {
	names := strings.Join(texts[:min(maxNames, len(texts))], ", ")
	if more := len(texts) - maxNames; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	return names
}

func (r *Reconciler) warn(n pool.NodePool, reason, action, note string, args ...any) {
	r.Events.Eventf(ciliumpool.Reference(n), nil, corev1.EventTypeWarning, reason, action, note, args...)
}

// nodeEvents returns a handler that enqueues a Node that is created or deleted, or whose labels, subnets, readiness or pod
// capacity change. After the deletion, no cooldown waits for the agent any more (setReadiness).
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
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q source.Queue) {
			q.Add(source.ForName(e.Object.GetName()))
		},
	}
}

// podEvents returns a handler that enqueues the node of a pod if the pod may need an entry there or no longer needs one.
// When a pod ends, the cooldown of its address may end too.
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

// otherPools enqueues the other nodes whose pools have an entry for the pod. A scheduler may have claimed an entry on a
// strict node for a pod that was then bound to another node, or to none.
func (r *Reconciler) otherPools(pod *corev1.Pod, q source.Queue) {
	for _, h := range r.Ledger.Held(pool.OwnerKey(pod.Namespace, pod.Name)) {
		if h.Node != identity.PodNode(pod) {
			q.Add(source.ForName(h.Node))
		}
	}
}

// coolsDownFrom reports whether an address that was released from the pod is in cooldown on the node. Such a cooldown
// lasts longer while the pod waits for an IP (nodepool.State.RestoreWithin).
func (r *Reconciler) coolsDownFrom(node string, pod *corev1.Pod) bool {
	n, _ := r.Ledger.Node(node)
	owner := pool.OwnerKey(pod.Namespace, pod.Name)
	for _, e := range n.Entries {
		if e.CoolsDownFrom(owner) {
			return true
		}
	}
	return false
}

// podChanged enqueues the node of a pod if the pod awaits an IP, or if an address that was released from the pod is
// in cooldown there. It also enqueues the node if the node is strict or can't be read from the cache.
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
