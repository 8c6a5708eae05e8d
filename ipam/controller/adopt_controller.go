// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/plan"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// adoptReconciler gives pods that another scheduler placed the address that they run with: it
// writes the owner of the entry, and the record follows as it does for a claim. It gives a pod a
// second address only where its failover is Reassign, and takes none. Pods of our own scheduler that have
// lost what they were bound for are its as well: see mend.
type adoptReconciler struct {
	ledger   *ledger.Ledger
	writer   *ciliumpool.Writer
	cached   client.Reader
	live     client.Reader
	events   events.EventRecorder
	adoption identity.Adoption
	// failover is the policy of records that say none.
	failover v1alpha1.Failover
	kinds    identity.Kinds

	workloads workloadStore
	clock     clock.Clock
	verify    VerifyConfig
	restarter *restarter
}

func (r *adoptReconciler) setup(mgr manager.Manager, feed *source.Feed, ready []toolscache.InformerSynced) error {
	return builder.ControllerManagedBy(mgr).
		Named("adopt").
		For(&corev1.Pod{}, builder.WithPredicates(predicate.NewPredicateFuncs(func(obj client.Object) bool {
			pod := obj.(*corev1.Pod)
			_, wanted, err := r.adoption.Wants(pod, r.kinds)
			return err != nil || wanted && len(plan.Adoptable(pod, r.adoption.IPv4Only)) > 0
		}))).
		// Of what our own pods have lost pools and records tell too.
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(r.ofLost), builder.WithPredicates(source.AfterStart)).
		WatchesRawSource(feed.Resynced(source.Resync{Clock: r.clock, Period: source.ResyncPeriod, All: r.allLost, Ready: ready})).
		Watches(&v1alpha1.FixedIP{}, handler.Funcs{DeleteFunc: func(_ context.Context, e event.DeleteEvent, q source.Queue) {
			for _, req := range source.Request(holderOf(e.Object.(*v1alpha1.FixedIP))) {
				q.Add(req)
			}
		}}).
		WithOptions(source.Workers(4)).
		Complete(r)
}

// Reconcile looks at one pod.
func (r *adoptReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var pod corev1.Pod
	if err := r.cached.Get(ctx, req.NamespacedName, &pod); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if id, ours := r.adoption.Placed(&pod, r.kinds); ours {
		if lost, err := r.lost(ctx, &pod, id); lost || err != nil {
			if err != nil {
				return reconcile.Result{}, err
			}
			return r.mend(ctx, &pod, id)
		}
	}
	id, wanted, err := r.adoption.Wants(&pod, r.kinds)
	if err != nil {
		r.events.Eventf(&pod, nil, corev1.EventTypeWarning, "InvalidAnnotation", "AdoptAddress", "%v; its address is not fixed", err)
	}
	if err != nil || !wanted {
		return reconcile.Result{}, nil
	}
	addrs := plan.Adoptable(&pod, r.adoption.IPv4Only)
	held := r.ledger.Held(id.Key())
	if len(addrs) == 0 || holds(held, pod.Spec.NodeName, addrs) && !r.ordinary(held, pod.Spec.NodeName) {
		return reconcile.Result{}, nil
	}
	var record v1alpha1.FixedIP
	if err := r.cached.Get(ctx, req.NamespacedName, &record); client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("read FixedIP %s: %w", req, err)
	}
	if node, strayed := plan.Strayed(held, plan.Keeps(&record), addrs); len(strayed) > 0 {
		// Of two addresses under Reassign the record controller keeps the one of the pod's node.
		reassigned := cmp.Or(record.Spec.Failover, r.failover) == v1alpha1.Reassign && record.UID != "" && record.DeletionTimestamp == nil
		if !reassigned || node == pod.Spec.NodeName {
			r.tellStrayed(&pod, addrs, node, strayed)
			return reconcile.Result{}, nil
		}
	}
	switch err := r.adopt(ctx, &pod, id, addrs); {
	case errors.Is(err, errSuperseded), errors.Is(err, ciliumpool.ErrGone):
		// The watch will show it, or has shown it already.
		klog.FromContext(ctx).V(3).Info("Adoption superseded", "err", err)
		return reconcile.Result{}, nil
	case errors.Is(err, errUnfit):
		r.events.Eventf(&pod, nil, corev1.EventTypeWarning, "NotAdopted", "AdoptAddress", "Its address is not fixed: %v", err)
		return reconcile.Result{RequeueAfter: source.ResyncPeriod}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("fix the address of pod %s: %w", req, err)
	}
	return reconcile.Result{}, nil
}

// errUnfit: the address of a pod can't be its own.
var errUnfit = errors.New("the address can't be kept")

// adopt writes the owner onto the entries of the addresses that a pod has.
//
// That is safe only for a pod that has them, so the pod is looked at before and after the write: as
// long as it stands nobody else can have them. If it went in between, the entries become what they
// were.
func (r *adoptReconciler) adopt(ctx context.Context, pod *corev1.Pod, id identity.Identity, addrs []netip.Addr) error {
	if err := stillHas(ctx, r.live, pod, addrs); err != nil {
		return err
	}
	// taken are the entries as they were, to be put back if need be.
	var taken []pool.Edit
	err := r.writer.Write(ctx, ciliumpool.Request{Node: pod.Spec.NodeName, Live: true, Decide: func(n pool.Node) ([]pool.Edit, error) {
		if other, disputed := r.ledger.Disputed(n.Name); disputed {
			return nil, fmt.Errorf("%w: the subnets of node %s overlap those of node %s", errUnfit, n.Name, other)
		}
		for _, a := range addrs {
			if owner, ok := r.ledger.KeptFor(a); ok && owner != id.Key() {
				return nil, fmt.Errorf("%w: %s is kept for %s by a FixedIP", errUnfit, a, owner)
			}
		}
		if b := n.OtherAddressOf(id.Key(), addrs); b != nil {
			// The cache has yet to show it.
			return nil, fmt.Errorf("%w: %w", errSuperseded, b)
		}
		edits, err := plan.Adopt(n, id, addrs, r.clock.Now())
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errUnfit, err)
		}
		if len(edits) > 0 {
			taken = edits
		}
		return edits, nil
	}})
	if err != nil {
		return err
	}
	gone := stillHas(ctx, r.live, pod, addrs)
	if !errors.Is(gone, errSuperseded) {
		if gone == nil && len(taken) > 0 {
			klog.FromContext(ctx).Info("Address adopted", "ips", addrs, "node", pod.Spec.NodeName)
			metrics.Adopted()
			r.events.Eventf(pod, nil, corev1.EventTypeNormal, "Adopted", "AdoptAddress", "%s is its address for life now", address.Join(addrs))
		}
		return gone
	}
	err = r.writer.Write(ctx, ciliumpool.Request{Node: pod.Spec.NodeName, Live: true, Decide: func(n pool.Node) ([]pool.Edit, error) {
		var undo []pool.Edit
		for _, e := range taken {
			if now, ok := n.Entries[e.Addr]; ok && now == *e.To {
				undo = append(undo, n.Set(e.Addr, ptr.Deref(e.From, pool.Entry{})))
			}
		}
		return undo, nil
	}})
	if err != nil {
		return fmt.Errorf("give up the address of the pod, which went meanwhile: %w", err)
	}
	return gone
}

// tellStrayed says on a pod that it runs without the address that is kept for it, and what would
// have kept it.
func (r *adoptReconciler) tellStrayed(pod *corev1.Pod, has []netip.Addr, node string, kept []netip.Addr) {
	where := "in no node's pool"
	switch {
	case node == pod.Spec.NodeName:
		where = "on this node too; deleting the pod gives it that address"
	case node != "":
		where = fmt.Sprintf("on node %s; a pod template with schedulerName: fixedip-scheduler would have brought it back there", node)
	}
	r.events.Eventf(pod, nil, corev1.EventTypeWarning, "AddressNotKept", "AdoptAddress", "Runs with %s on node %s, and %s is kept for it %s",
		address.Join(has), pod.Spec.NodeName, address.Join(kept), where)
}

// ordinary tells whether what a node's pool gives to a pod is for as long as it is there.
func (r *adoptReconciler) ordinary(held []ledger.Holding, node string) bool {
	for _, h := range held {
		if h.Node == node && r.ledger.EntryOf(h).IsUnreserved() {
			return true
		}
	}
	return false
}

// holds tells whether the pools give all of the addresses, on the node, to whom the holdings are of.
func holds(held []ledger.Holding, node string, addrs []netip.Addr) bool {
	for _, h := range held {
		if h.Node == node {
			return !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !slices.Contains(h.Addrs, a) })
		}
	}
	return false
}

// stillHas asks the API server whether the very pod has the addresses, and will have them for a while. It
// returns errSuperseded where it does not.
func stillHas(ctx context.Context, live client.Reader, pod *corev1.Pod, addrs []netip.Addr) error {
	var now corev1.Pod
	switch err := live.Get(ctx, client.ObjectKeyFromObject(pod), &now); {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("pod %s is gone: %w", klog.KObj(pod), errSuperseded)
	case err != nil:
		return fmt.Errorf("look at pod %s: %w", klog.KObj(pod), err)
	}
	has := plan.Adoptable(&now, false)
	if now.UID != pod.UID || slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !slices.Contains(has, a) }) {
		return fmt.Errorf("pod %s is on its way out or another one: %w", klog.KObj(pod), errSuperseded)
	}
	return nil
}
