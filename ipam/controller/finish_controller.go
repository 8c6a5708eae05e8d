package controller

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/core/plan"
	"fixedip.io/fixedip/ipam/core/pool"
)

// finishesAtOnce bounds the records that are seen off at once. Of the writes that a deleted workload
// costs, this one is the dearest, and nobody's address waits for it, while those of the next node do.
const finishesAtOnce = 4

// finishReconciler sees records off whose addresses have gone back: it removes our finalizer. A request
// names an identity, as recordReconciler's does, which finds out that it is time; it is looked at anew
// here.
type finishReconciler struct{ records *recordReconciler }

func (r *finishReconciler) setup(mgr manager.Manager, identities *source.Feed) error {
	return builder.ControllerManagedBy(mgr).
		Named("finish").
		// What stands at the start recordReconciler looks at, and asks.
		WatchesRawSource(identities.Source(nil, func() []reconcile.Request { return nil })).
		WithOptions(source.Workers(finishesAtOnce)).
		Complete(r)
}

// Reconcile sees one record off.
func (r *finishReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	s, err := r.records.situation(ctx, r.records.cached, req.NamespacedName)
	if err != nil {
		return untilKnown(ctx, err)
	}
	if plan.Decide(s).Step != plan.FinishRecord || r.records.underway.has(pool.OwnerKey(req.Namespace, req.Name)) {
		// What is under way is asked for again.
		return reconcile.Result{}, nil
	}
	err = finish(ctx, r.records.live, s.Record)
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: supersededRetry}, nil
	}
	return reconcile.Result{}, err
}

// finish removes our finalizer from a record.
func finish(ctx context.Context, api client.Client, record *v1alpha1.FixedIP) error {
	record = record.DeepCopy()
	controllerutil.RemoveFinalizer(record, v1alpha1.Finalizer)
	if err := api.Update(ctx, record); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("remove the finalizer of FixedIP %s: %w", client.ObjectKeyFromObject(record), err)
	}
	return nil
}
