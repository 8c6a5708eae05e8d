package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
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

// slotReconciler owns the FixedIPs of slots, and the release of their entries. A request names a
// workload whose pods have no lasting names, as pool entries do: "Kind/name" in its namespace. How
// many slots it needs can only be told of all of them together.
//
// It makes the steps as recordReconciler makes them, one for each slot: what a slot is differs from
// an identity of one pod, and what is done about it does not.
type slotReconciler struct{ *recordReconciler }

// slotRequest is the request for a workload, named as in pool entries, if its kind has slots.
func slotRequest(kinds identity.Kinds, resource string) []reconcile.Request {
	namespace, name, _ := strings.Cut(resource, "/")
	label, _, ok := strings.Cut(name, "/")
	if kind, known := kinds.Labelled(label); !ok || !known || kind.Identity != identity.Slot {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}}
}

func (r *slotReconciler) setup(mgr manager.Manager, workloads *source.Feed) error {
	return builder.ControllerManagedBy(mgr).
		Named("slot").
		Watches(&v1alpha1.FixedIP{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, obj client.Object) []reconcile.Request {
			record := obj.(*v1alpha1.FixedIP)
			if !record.Spec.Slot {
				return nil
			}
			o := identity.OwnerOf(record)
			return slotRequest(r.kinds, identity.Resource(record.Namespace, o.GroupKind(), o.Name))
		})).
		WatchesRawSource(workloads.Source(nil, func() []reconcile.Request {
			var all []reconcile.Request
			for _, resource := range r.ledger.Workloads() {
				all = append(all, slotRequest(r.kinds, resource)...)
			}
			return all
		})).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(r.ofHolder)).
		WithOptions(source.Workers(4)).
		Complete(r)
}

// ofHolder asks for the workload whose slot a pod has or had.
func (r *slotReconciler) ofHolder(_ context.Context, obj client.Object) []reconcile.Request {
	var requests []reconcile.Request
	for _, h := range r.ledger.Held(pool.OwnerKey(obj.GetNamespace(), obj.GetName())) {
		if label, name, ok := r.ledger.WorkloadOf(h); ok {
			requests = append(requests, slotRequest(r.kinds, obj.GetNamespace()+"/"+label+"/"+name)...)
		}
	}
	return requests
}

// slotStep is what to do about one slot.
type slotStep struct {
	slot      plan.Slot
	situation plan.Situation
	next      plan.Next
}

// Reconcile makes the next step about each slot of a workload.
func (r *slotReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	steps, err := r.decide(ctx, r.cached, req.NamespacedName)
	if err != nil {
		return untilKnown(ctx, err)
	}
	for _, s := range steps {
		if destroys(s.next.Step) {
			// The caches suggest to give something up: ask the API server whether it is so.
			if steps, err = r.decide(ctx, r.live, req.NamespacedName); err != nil {
				return untilKnown(ctx, err)
			}
			break
		}
	}
	after := r.sweep
	var failed []error
	for _, s := range steps {
		err := r.step(ctx, req.Namespace, s)
		switch {
		case errors.Is(err, errSuperseded) || apierrors.IsConflict(err):
			// The world has moved on, which the watches will show, or have shown already.
			klog.FromContext(ctx).V(3).Info("Step superseded", "step", s.next.Step, "pod", s.slot.Holder, "err", err)
			after = min(after, supersededRetry)
		case err != nil:
			failed = append(failed, fmt.Errorf("%s of the slot of %s, held by pod %s: %w", s.next.Step, req, s.slot.Holder, err))
		}
		if !s.next.At.IsZero() {
			after = min(after, max(supersededRetry, s.next.At.Sub(r.clock.Now())))
		}
	}
	if len(failed) > 0 || len(steps) == 0 {
		return reconcile.Result{}, errors.Join(failed...)
	}
	return reconcile.Result{RequeueAfter: after}, nil
}

// decide finds the steps from a reader: the caches, or the API server. What the pools say always
// comes from the ledger; whoever writes to a pool tests what he saw.
func (r *slotReconciler) decide(ctx context.Context, from client.Reader, key types.NamespacedName) ([]slotStep, error) {
	label, name, _ := strings.Cut(key.Name, "/")
	kind, ok := r.kinds.Labelled(label)
	if !ok {
		return nil, nil
	}
	resource := identity.Resource(key.Namespace, kind.GroupKind(), name)
	records, err := r.records(ctx, from, key.Namespace, resource)
	if err != nil {
		return nil, err
	}
	slots := plan.Slots(records, r.ledger.Slots(resource))
	if len(slots) == 0 {
		return nil, nil
	}
	workload, err := r.read(ctx, from, kind.GroupKind(), key.Namespace, name)
	if err != nil {
		return nil, err
	}
	for i := range slots {
		var pod corev1.Pod
		switch err := from.Get(ctx, types.NamespacedName{Namespace: key.Namespace, Name: slots[i].Holder}, &pod); {
		case err == nil:
			slots[i].Pod = &pod
		case !apierrors.IsNotFound(err):
			return nil, fmt.Errorf("read pod %s/%s: %w", key.Namespace, slots[i].Holder, err)
		}
	}
	return r.steps(slots, workload, kind, name), nil
}

// steps decides about each slot.
func (r *slotReconciler) steps(slots []plan.Slot, workload *identity.Workload, kind identity.Kind, name string) []slotStep {
	owner := plan.Workload{OwnerReference: v1alpha1.OwnerReference{Kind: kind.Kind, Name: name}}
	surplus := make([]bool, len(slots))
	if workload != nil {
		owner.Exists, owner.UID, owner.APIVersion = true, workload.UID, workload.APIVersion
		if policy, ok := r.policy(workload); ok {
			owner.Reclaim = &policy
		}
		surplus = plan.Surplus(slots, *workload)
	}
	steps := make([]slotStep, len(slots))
	for i, slot := range slots {
		s := plan.Situation{Record: slot.Record, Pod: slot.Pod, Workload: owner, Now: r.clock.Now()}
		if len(slot.Held.Addrs) > 0 {
			s.Held = []ledger.Holding{slot.Held}
		}
		s.Workload.Excludes = surplus[i]
		s.Asked = workload != nil && slot.Pod != nil && request.Asks(slot.Pod.Annotations, workload.Annotations)
		steps[i] = slotStep{slot: slot, situation: s, next: plan.DecideSlot(s, slot.Holder)}
	}
	return steps
}

// records are the FixedIPs of the slots of a workload, of those that are read from the API server
// picked out here.
func (r *slotReconciler) records(ctx context.Context, from client.Reader, namespace, resource string) ([]v1alpha1.FixedIP, error) {
	opts := []client.ListOption{client.InNamespace(namespace)}
	if from == r.cached {
		opts = append(opts, index.OfWorkload(resource))
	}
	var all v1alpha1.FixedIPList
	if err := from.List(ctx, &all, opts...); err != nil {
		return nil, fmt.Errorf("list the FixedIPs of %s: %w", resource, err)
	}
	var records []v1alpha1.FixedIP
	for _, record := range all.Items {
		if o := identity.OwnerOf(&record); record.Spec.Slot && identity.Resource(namespace, o.GroupKind(), o.Name) == resource {
			records = append(records, record)
		}
	}
	return records, nil
}

// listed notes which addresses of a slot the agent of its node lists, of which the API server is asked: the pod is gone
// there, and the cache may be of before.
func (r *slotReconciler) listed(ctx context.Context, spec v1alpha1.FixedIPSpec, departed *v1alpha1.Departure) error {
	var node ciliumv2.CiliumNode
	switch err := r.live.Get(ctx, client.ObjectKey{Name: spec.NodeName}, &node); {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("look what the agent of node %s lists: %w", spec.NodeName, err)
	}
	seen := ciliumpool.FromCiliumNode(&node)
	for _, ip := range spec.IPs {
		if a, err := address.Parse(ip); err == nil && seen.InUse(a) {
			departed.NodeName, departed.Listed = spec.NodeName, append(departed.Listed, ip)
		}
	}
	return nil
}

// step makes one step about one slot. What is released goes by the pod that has it; all else by the
// record.
func (r *slotReconciler) step(ctx context.Context, namespace string, s slotStep) error {
	if s.next.Step == plan.FinishRecord {
		// finishReconciler knows identities that are pods.
		return finish(ctx, r.live, s.situation.Record)
	}
	key := types.NamespacedName{Namespace: namespace, Name: s.slot.Holder}
	if s.next.Step == plan.CreateRecord {
		first, err := address.Parse(s.next.Spec.IPs[0])
		if err != nil {
			return err
		}
		key.Name = identity.SlotName(s.next.Spec.Owner.Name, first)
	}
	if s.situation.Record != nil && s.next.Departs(s.situation.Record) {
		var pod corev1.Pod
		switch err := r.live.Get(ctx, key, &pod); {
		case err == nil && !podutil.IsTerminal(&pod):
			return fmt.Errorf("pod %s is there: %w", key, errSuperseded)
		case client.IgnoreNotFound(err) != nil:
			return fmt.Errorf("look whether pod %s is gone: %w", key, err)
		}
		// It was gone by now, and may not have been when this was decided.
		departed := plan.Departed(key.Name, r.clock.Now())
		if err := r.listed(ctx, s.situation.Record.Spec, departed); err != nil {
			return err
		}
		s.next.Status.Departed = departed
	}
	return r.make(ctx, key, s.situation, s.next)
}
