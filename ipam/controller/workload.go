package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/plan"
	"fixedip.io/fixedip/ipam/store/workloads"
)

// unknownRetry is how long an identity waits whose kind of workload is not known yet: the watch of
// it has just begun, or its API is not installed.
const unknownRetry = 5 * time.Second

// workloadStore knows workloads: from their watches, and at the API server. Of what is not there both
// say nil.
type workloadStore interface {
	Get(gk schema.GroupKind, namespace, name string) (*identity.Workload, error)
	Live(ctx context.Context, gk schema.GroupKind, namespace, name string) (*identity.Workload, error)
}

// newWorkloads makes the store of the workloads, which the manager runs.
func newWorkloads(mgr manager.Manager, kinds identity.Kinds) (*workloads.Store, error) {
	api, err := dynamic.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("make a client of workloads: %w", err)
	}
	var watched []schema.GroupKind
	for _, k := range kinds.All() {
		watched = append(watched, k.GroupKind())
	}
	store := workloads.New(api, mgr.GetRESTMapper(), watched...)
	if err := mgr.Add(store); err != nil {
		return nil, fmt.Errorf("run the watches of workloads: %w", err)
	}
	return store, nil
}

// workload fills in what is known of the owner of an identity. It is gone only where its kind is
// known and it is not there.
func (r *recordReconciler) workload(ctx context.Context, from client.Reader, gk schema.GroupKind, key types.NamespacedName, w *plan.Workload) (*identity.Workload, error) {
	found, err := r.read(ctx, from, gk, key.Namespace, w.Name)
	if err != nil || found == nil {
		return nil, err
	}
	w.Exists, w.UID, w.APIVersion = true, found.UID, found.APIVersion
	w.Excludes = found.Excludes(key.Name)
	w.OptsOut = identity.OptsOut(found.Template)
	if policy, ok := r.policy(found); ok {
		w.Reclaim = &policy
	}
	failover, err := identity.Failover(found.Annotations, found.Template)
	if err != nil {
		r.events.Eventf(objectOf(found), nil, corev1.EventTypeWarning, "InvalidAnnotation", "ReadPolicy", "%v; its pods wait or move as before", err)
	} else {
		w.Failover = &failover
	}
	return found, nil
}

// read reads a workload from its watch, or from the API server where the other reader is that; nil
// where there is none.
func (r *recordReconciler) read(ctx context.Context, from client.Reader, gk schema.GroupKind, namespace, name string) (*identity.Workload, error) {
	if l, ok := from.(look); ok {
		return l.workload(ctx, r.workloads, gk, namespace, name)
	}
	if from == client.Reader(r.live) {
		return r.workloads.Live(ctx, gk, namespace, name)
	}
	return r.workloads.Get(gk, namespace, name)
}

// policy is what a workload says about its addresses; ok is false where its words can't be read, of
// which it is told.
func (r *recordReconciler) policy(w *identity.Workload) (p v1alpha1.ReclaimPolicy, ok bool) {
	p, err := identity.Reclaim(w.Annotations, w.Template)
	if err != nil {
		r.events.Eventf(objectOf(w), nil, corev1.EventTypeWarning, "InvalidAnnotation", "ReadPolicy", "%v; the addresses of its pods are kept as before", err)
	}
	return p, err == nil
}

// objectOf is what events about a workload are shown on.
func objectOf(w *identity.Workload) runtime.Object {
	return &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: w.APIVersion, Kind: w.Kind},
		ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: w.Name, UID: w.UID},
	}
}

// ofWorkload asks for every identity that is kept for a workload, recorded or only claimed.
func (r *recordReconciler) ofWorkload(ctx context.Context, w identity.Workload) []reconcile.Request {
	var requests []reconcile.Request
	var records v1alpha1.FixedIPList
	if err := r.cached.List(ctx, &records, index.OfWorkload(w.Resource()), client.UnsafeDisableDeepCopy); err != nil {
		klog.FromContext(ctx).Error(err, "FixedIPs not listed from the cache; the sweep will find what this event was for", "kind", w.Kind, "workload", klog.KRef(w.Namespace, w.Name))
	}
	for _, record := range records.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&record)})
	}
	for _, owner := range r.ledger.OwnersOf(w.Namespace, identity.Label(w.GroupKind), w.Name) {
		requests = append(requests, source.Request(owner)...)
	}
	return requests
}

// untilKnown has an identity looked at again where its workload is not known yet, which is no
// error.
func untilKnown(ctx context.Context, err error) (reconcile.Result, error) {
	if errors.Is(err, workloads.ErrUnknown) {
		klog.FromContext(ctx).V(3).Info("Nothing is done while the workload is not known", "err", err)
		return reconcile.Result{RequeueAfter: unknownRetry}, nil
	}
	return reconcile.Result{}, err
}
