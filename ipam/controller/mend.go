// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/plan"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/request"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// A bind writes nothing where the entry stands already. Where the watch of the scheduler is behind, or
// the controller dies between a release and its second look, a pod is therefore bound counting on an entry
// that was taken back. That shows in what stands, whenever and whoever looks: our scheduler bound the pod,
// and there is neither an entry for it nor a FixedIP with an address.

// lost tells whether a pod that our scheduler has placed has neither an entry of its own nor a record that keeps an
// address for it.
func (r *adoptReconciler) lost(ctx context.Context, pod *corev1.Pod, id identity.Identity) (bool, error) {
	if pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil || podutil.IsTerminal(pod) {
		return false, nil
	}
	held := r.ledger.Held(id.Key())
	if slices.ContainsFunc(held, func(h ledger.Holding) bool { return !r.ordinary([]ledger.Holding{h}, pod.Spec.NodeName) }) {
		return false, nil
	}
	// What a move has announced or left is none: a pod is bound where that has come to its end.
	var record v1alpha1.FixedIP
	err := r.cached.Get(ctx, client.ObjectKeyFromObject(pod), &record, client.UnsafeDisableDeepCopy)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("read FixedIP %s: %w", client.ObjectKeyFromObject(pod), err)
	}
	// A person may have made one that waits for addresses: it keeps none.
	return apierrors.IsNotFound(err) || record.DeletionTimestamp == nil && len(record.Spec.IPs) == 0, nil
}

// ofLost asks for a pod that has lost what it was bound for. Where that can't be told, it is looked at.
func (r *adoptReconciler) ofLost(ctx context.Context, obj client.Object) []reconcile.Request {
	pod := obj.(*corev1.Pod)
	id, ours := r.adoption.Placed(pod, r.kinds)
	if !ours {
		return nil
	}
	if lost, err := r.lost(ctx, pod, id); err == nil && !lost {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKeyFromObject(pod)}}
}

// allLost are all such pods. It looks at the pods of one node after another: those of a large cluster are
// too many to look at together.
func (r *adoptReconciler) allLost() []string {
	ctx := context.Background()
	var found []string
	for _, n := range r.ledger.Nodes() {
		pods, err := index.PodsOnNode(ctx, r.cached, n.Name)
		if err != nil {
			klog.Background().Error(err, "Pods not listed from the cache; the next sweep looks at them", "node", n.Name)
			continue
		}
		for i := range pods {
			for _, req := range r.ofLost(ctx, &pods[i]) {
				found = append(found, req.String())
			}
		}
	}
	return found
}

// mend gives a pod that has lost what it was bound for that back, while it has no address yet, and keeps
// for it what it runs with afterwards. Where that can't be kept, or is not what the pod asks for, it is
// restarted: the scheduler claims anew for the next.
func (r *adoptReconciler) mend(ctx context.Context, pod *corev1.Pod, id identity.Identity) (reconcile.Result, error) {
	may, workload, err := r.mayHave(pod, id)
	if err != nil {
		return reconcile.Result{}, err
	}
	addrs := plan.Adoptable(pod, r.adoption.IPv4Only)
	switch {
	case len(addrs) == 0:
		err = r.giveBack(ctx, pod, id, may)
	case slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !may(a) }):
		err = fmt.Errorf("%w: it asks for other addresses", errUnfit)
	default:
		err = r.adopt(ctx, pod, id, addrs)
	}
	switch {
	case errors.Is(err, errSuperseded), errors.Is(err, ciliumpool.ErrGone):
		klog.FromContext(ctx).V(3).Info("Mending superseded", "err", err)
		return reconcile.Result{RequeueAfter: supersededRetry}, nil
	case errors.Is(err, errUnfit):
		return r.restart(ctx, pod, workload, err)
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("fix the address of pod %s, which was bound to node %s after its own was taken back: %w", klog.KObj(pod), pod.Spec.NodeName, err)
	}
	return reconcile.Result{}, nil
}

// mayHave tells which addresses a pod may have by what it asks for, and what its workload is; nil: it has
// none, or that is not here.
func (r *adoptReconciler) mayHave(pod *corev1.Pod, id identity.Identity) (may func(netip.Addr) bool, workload *identity.Workload, err error) {
	may = func(netip.Addr) bool { return true }
	of := identity.Workload{GroupKind: id.Owner.GroupKind(), Name: id.Owner.Name}
	if !id.Itself() {
		if workload, err = r.workloads.Get(id.Owner.GroupKind(), id.Namespace, id.Owner.Name); err != nil {
			return nil, nil, err
		}
	}
	if workload != nil {
		of = *workload
	}
	asked, asks, err := request.Of(pod, of, id.Itself())
	if err != nil || !asks {
		// The scheduler refuses what can't be read. A pod that is bound all the same has what it has.
		return may, workload, nil
	}
	return func(a netip.Addr) bool {
		return !slices.Contains(asked.Families(), address.Of(a)) || asked.Contains(a)
	}, workload, nil
}

// giveBack writes the entry again that was taken from the pod's name, where it rests on the pod's node.
func (r *adoptReconciler) giveBack(ctx context.Context, pod *corev1.Pod, id identity.Identity, may func(netip.Addr) bool) error {
	allowed := func(a netip.Addr) bool {
		owner, kept := r.ledger.KeptFor(a)
		return may(a) && (!kept || owner == id.Key())
	}
	n, ok := r.ledger.Node(pod.Spec.NodeName)
	if !ok || len(plan.GiveBack(n, id, allowed)) == 0 {
		// It gets what the agent has, which is kept for it then.
		return nil
	}
	var now corev1.Pod
	switch err := r.live.Get(ctx, client.ObjectKeyFromObject(pod), &now); {
	case apierrors.IsNotFound(err), err == nil && (now.UID != pod.UID || !podutil.AwaitsIP(&now)):
		return fmt.Errorf("pod %s is gone or has its address: %w", klog.KObj(pod), errSuperseded)
	case err != nil:
		return fmt.Errorf("look at pod %s: %w", klog.KObj(pod), err)
	}
	var given []pool.Edit
	err := r.writer.Write(ctx, ciliumpool.Request{Node: n.Name, Live: true, Whole: true, Urgent: true, Decide: func(n pool.Node) ([]pool.Edit, error) {
		edits := plan.GiveBack(n, id, allowed)
		if len(edits) > 0 {
			given = edits
		}
		return edits, nil
	}})
	if err != nil {
		return err
	}
	for _, e := range given {
		klog.FromContext(ctx).Info("Address given back", "node", n.Name, "ip", e.Addr)
		r.events.Eventf(pod, nil, corev1.EventTypeNormal, "GivenBack", "AdoptAddress", "It was bound to node %s when its address %s had just been taken back, and has it again", n.Name, e.Addr)
	}
	return nil
}

// restart evicts a pod whose address can't be kept, if its policy says so, once it has been there for as
// long as every wrong address has to last.
func (r *adoptReconciler) restart(ctx context.Context, pod *corev1.Pod, workload *identity.Workload, unfit error) (reconcile.Result, error) {
	var annotations map[string]string
	if workload != nil {
		annotations = workload.Annotations
	}
	policy, err := identity.MismatchPolicy(annotations, pod.Annotations, identity.OnMismatch(r.verify.OnMismatch))
	if err != nil {
		r.events.Eventf(pod, nil, corev1.EventTypeWarning, "InvalidAnnotation", "ReadPolicy", "%v; a mismatch is only reported", err)
	}
	wait := youth(pod, r.verify.RestartAfter).Sub(r.clock.Now())
	if wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	what := "restarting it gives it another"
	if policy != identity.Restart || metav1.GetControllerOfNoCopy(pod) == nil {
		r.events.Eventf(pod, nil, corev1.EventTypeWarning, "NotAdopted", "AdoptAddress", "Its address is not fixed: %v; %s", unfit, what)
		return reconcile.Result{RequeueAfter: source.ResyncPeriod}, nil
	}
	later, err := r.restarter.restart(ctx, client.ObjectKeyFromObject(pod), pod)
	switch {
	case errors.Is(err, errBlocked):
		r.events.Eventf(pod, nil, corev1.EventTypeWarning, "NotAdopted", "AdoptAddress", "Its address is not fixed: %v; %s, and it can't be restarted now: %v", unfit, what, err)
		return reconcile.Result{RequeueAfter: blockedRetry}, nil
	case errors.Is(err, errSuperseded):
		return reconcile.Result{}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("restart pod %s: %w", klog.KObj(pod), err)
	case later > 0:
		return reconcile.Result{RequeueAfter: later}, nil
	}
	r.events.Eventf(pod, nil, corev1.EventTypeWarning, "NotAdopted", "AdoptAddress", "Its address is not fixed: %v; it was evicted to start again with another", unfit)
	return reconcile.Result{}, nil
}
