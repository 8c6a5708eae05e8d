// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/core/plan"
	"fixedip.io/fixedip/ipam/core/subnetplan"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/ipam/store/subnets"
)

// orphanReconciler looks at all subnets without a node in one request: it records since when their nodes are gone, on
// the NodeSubnets and on the FixedIPs in them, chooses heirs, and gives up what the policy gives up. Nothing is counted
// in memory, so that the grace period goes on when the controller is replaced.
type orphanReconciler struct {
	*Controller
	// looked is when all orphans were last looked at, and released when subnets were last given up. They pace the
	// work and decide nothing.
	looked, released time.Time
}

// Reconcile looks at all orphans.
func (r *orphanReconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	now := r.Clock.Now()
	if wait := r.looked.Add(passInterval).Sub(now); wait > 0 && wait <= passInterval {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	if !r.Synced() {
		return reconcile.Result{RequeueAfter: passInterval}, nil
	}
	if !r.started.Load() {
		if err := r.start(ctx); err != nil {
			return reconcile.Result{}, err
		}
	}
	r.looked = now
	s, err := r.snapshot(ctx, now)
	if err != nil {
		return reconcile.Result{}, err
	}
	next := now.Add(r.Resync)
	soon := func(at time.Time) {
		if !at.IsZero() && at.Before(next) {
			next = at
		}
	}
	again, err := r.record(ctx, s)
	if err != nil {
		return reconcile.Result{}, err
	}
	if again {
		soon(now.Add(passInterval))
	}
	switch changed, err := r.setConditions(ctx, s); {
	case err != nil:
		return reconcile.Result{}, err
	case changed:
		soon(now.Add(passInterval))
	}
	for _, o := range s.orphans {
		heir, at := r.Rules.PickExistingNode(o, s.heirs, now)
		if heir != "" {
			if err := r.adopt(ctx, o, heir, s); err != nil {
				return reconcile.Result{}, err
			}
			soon(now.Add(passInterval))
			continue
		}
		soon(at)
		kept, at := r.Rules.ExpiredReservations(o, now)
		soon(at)
		if err := r.releaseExpired(ctx, o, kept, s); err != nil {
			return reconcile.Result{}, err
		}
	}
	at, err := r.release(ctx, s)
	if err != nil {
		return reconcile.Result{}, err
	}
	soon(at)
	metrics.Reconciled("subnet", now)
	return reconcile.Result{RequeueAfter: max(passInterval, next.Sub(now))}, nil
}

// start claims the subnets that CiliumNodes have without a NodeSubnet, as the API server has them, and opens the way
// for nodes that wait for one.
func (r *orphanReconciler) start(ctx context.Context) error {
	list, err := r.Store.List(ctx)
	if err != nil {
		return err
	}
	var failed error
	err = r.each(ctx, func() client.ObjectList { return &ciliumv2.CiliumNodeList{} }, func(obj runtime.Object) {
		n := ciliumpool.FromCiliumNode(obj.(*ciliumv2.CiliumNode))
		if failed == nil {
			failed = r.ClaimExisting(ctx, n, subnetplan.Holder{Node: n.Name, CiliumNodeUID: types.UID(n.UID)}, list)
		}
	})
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("claim the subnets that nodes have: %w", err)
	}
	r.started.Store(true)
	for _, n := range r.Ledger.Nodes() {
		r.AddNodes(n.Name)
	}
	return nil
}

// record creates the NodeSubnets that reserved addresses lack, and writes on those of orphans since when their nodes
// are gone. again: what was written is to be looked at.
func (r *orphanReconciler) record(ctx context.Context, s *snapshot) (again bool, err error) {
	for _, m := range s.missing {
		_, err := r.Store.Create(ctx, m.CIDR, subnetplan.Holder{Node: m.Node})
		if err != nil && !errors.Is(err, subnets.ErrTaken) {
			return again, err
		}
		again = true
		if m.Node != "" {
			r.AddNodes(m.Node)
		}
	}
	for _, o := range s.orphans {
		if !o.Since.IsZero() || len(o.Subnets) == 0 {
			continue
		}
		if o.Node != "" {
			if present, err := r.exists(ctx, o.Node); err != nil || present {
				return again, err
			}
		}
		for _, sub := range o.Subnets {
			ns := named(s.list, sub.CIDR)
			switch err := r.Store.UpdateStatus(ctx, ns, orphanStatus(ns, r.Rules.Hold, s.now)); {
			case errors.Is(err, subnets.ErrChanged):
			case err != nil:
				return again, err
			default:
				klog.FromContext(ctx).Info("The node of a subnet is gone", "node", o.Node, "subnet", sub.CIDR, "reserved", len(o.Kept))
			}
			again = true
		}
	}
	return again, nil
}

// adopt makes a living node the holder of an orphan. The node is given the subnets like one that returns.
func (r *orphanReconciler) adopt(ctx context.Context, o subnetplan.Orphan, heir string, s *snapshot) error {
	n, ok := r.Ledger.Node(heir)
	if !ok {
		return nil
	}
	_, err := r.Take(ctx, o, holder(n, s.nodes[heir]), s.list)
	switch {
	case errors.Is(err, subnets.ErrChanged), errors.Is(err, errPresent):
		return nil
	case err != nil:
		return fmt.Errorf("give the subnets of node %s to node %s: %w", o.Node, heir, err)
	}
	r.AddNodes(heir)
	return nil
}

// setConditions brings the condition of all FixedIPs up to date that says whether their subnet has a node.
// changed is true if one was written meanwhile, and has to be looked at again.
func (r *orphanReconciler) setConditions(ctx context.Context, s *snapshot) (changed bool, err error) {
	byName := func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) }
	for _, key := range slices.SortedFunc(maps.Keys(s.available), byName) {
		record, want := s.records[key], s.available[key]
		have := meta.FindStatusCondition(record.Status.Conditions, v1alpha1.ConditionHomed)
		if have != nil && have.Status == want.Status && have.Reason == want.Reason {
			continue
		}
		record = record.DeepCopy()
		// SetStatusCondition keeps the time while the status is the same. Here it counts from the change of the reason.
		meta.RemoveStatusCondition(&record.Status.Conditions, v1alpha1.ConditionHomed)
		want.LastTransitionTime = metav1.NewTime(s.now)
		want.ObservedGeneration = record.Generation
		meta.SetStatusCondition(&record.Status.Conditions, want)
		switch err := r.API.Status().Update(ctx, record); {
		case apierrors.IsConflict(err), apierrors.IsNotFound(err):
			changed = true
		case err != nil:
			return changed, fmt.Errorf("write condition %s of FixedIP %s: %w", v1alpha1.ConditionHomed, key, err)
		case want.Status == metav1.ConditionFalse:
			r.Events.Eventf(record, nil, corev1.EventTypeWarning, want.Reason, "LookForSubnet", "%s", want.Message)
		}
	}
	return changed, nil
}

// releaseExpired deletes the FixedIPs of a node that is gone whose reservations have expired by policy Free.
func (r *orphanReconciler) releaseExpired(ctx context.Context, o subnetplan.Orphan, kept []plan.ReservedAddress, s *snapshot) error {
	if len(kept) == 0 {
		return nil
	}
	// A deletion can't be undone: the caches don't suffice.
	if present, err := r.exists(ctx, o.Node); err != nil || present {
		return err
	}
	for _, k := range kept {
		record := s.records[k.Record]
		if record.DeletionTimestamp != nil {
			continue
		}
		err := r.API.Delete(ctx, record, client.Preconditions{UID: &record.UID, ResourceVersion: &record.ResourceVersion})
		switch {
		case apierrors.IsConflict(err), apierrors.IsNotFound(err):
			// The other family of the same FixedIP, or it was written meanwhile.
		case err != nil:
			return fmt.Errorf("delete FixedIP %s: %w", k.Record, err)
		default:
			r.Events.Eventf(record, nil, corev1.EventTypeNormal, "GivenUp", "DeleteRecord", "Node %s is gone for %v, and --orphaned-subnet-policy is %s: address %v is released, and the pod gets another", o.Node, r.Rules.Hold, subnetplan.Free, record.Spec.IPs)
		}
	}
	return nil
}
