// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/ciliumendpoint"
	"fixedip.io/fixedip/ipam/controller/internal/requeue"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/core/conformance"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/ipam/store/workloads"
)

// Workloads knows workloads from their watches. It returns nil for one that does not exist.
type Workloads interface {
	Get(gk schema.GroupKind, namespace, name string) (*identity.Workload, error)
}

// Controller runs the controllers verify and adopt. A request names a pod; for verify it is the pod of an identity, or
// the holder of a slot.
type Controller struct {
	Config    Config
	Ledger    *ledger.Ledger
	Writer    *ciliumpool.Writer
	Cached    client.Reader
	Live      client.Client
	Kinds     identity.Kinds
	Adoption  identity.Adoption
	Failover  v1alpha1.Failover
	Workloads Workloads
	// Endpoints is nil if CiliumEndpoints are not kept.
	Endpoints *ciliumendpoint.Keeper
	Events    events.EventRecorder
	Clock     clock.Clock
	// Ready must report true before the first resync.
	Ready []toolscache.InformerSynced

	// mu guards the maps. It is not held during a request.
	mu sync.Mutex
	// begun are restarts that the cached FixedIPs may not show yet. Key: the FixedIP, or the pod if there is none.
	begun map[types.NamespacedName]restart
	// backoffs are the pods that are not evicted again at once. Key: as of begun. They are lost with the process: the
	// first eviction after that comes sooner.
	backoffs map[types.NamespacedName]backoff
}

// Setup adds both controllers to a manager. verify reports pods whose entries, FixedIPs or CiliumEndpoints have changed,
// and adopt those whose entries or FixedIPs have.
func (c *Controller) Setup(ctx context.Context, mgr manager.Manager, verify, adopt *source.Feed, owners *workloads.Store) error {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &v1alpha1.FixedIP{}, restartingIndex, restarting); err != nil {
		return fmt.Errorf("index FixedIPs by restart: %w", err)
	}
	// A workload may have changed its policy.
	owners.AddHandler(func(before, after *identity.Workload) {
		if before == nil || after == nil || maps.Equal(before.Annotations, after.Annotations) {
			return
		}
		for _, owner := range c.Ledger.OwnersOf(after.Namespace, identity.Label(after.GroupKind), after.Name) {
			verify.Add(source.Request(owner)...)
		}
	})
	ofHolder := func(_ context.Context, obj client.Object) []reconcile.Request {
		return source.Request(HolderOf(obj.(*v1alpha1.FixedIP)))
	}
	identities := func() []string { return source.Identities(c.Ledger) }
	err := builder.ControllerManagedBy(mgr).
		Named("verify").
		Watches(&v1alpha1.FixedIP{}, handler.EnqueueRequestsFromMapFunc(ofHolder), builder.WithPredicates(source.BesideLedger)).
		WatchesRawSource(verify.Resynced(source.Resync{Clock: c.Clock, Period: source.ResyncPeriod, All: identities, Ready: c.Ready})).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(c.ofReserved), builder.WithPredicates(source.AfterStart)).
		WithOptions(source.Workers(4)).
		Complete(reconcile.Func(c.verify))
	if err != nil {
		return fmt.Errorf("set up the controller that verifies: %w", err)
	}
	adoptable := predicate.NewPredicateFuncs(func(obj client.Object) bool {
		_, wanted, err := c.Adoption.Wants(obj.(*corev1.Pod), c.Kinds)
		return err != nil || wanted && len(conformance.AdoptableIPs(obj.(*corev1.Pod), c.Adoption.IPv4Only)) > 0
	})
	deleted := predicate.Funcs{
		CreateFunc: func(event.CreateEvent) bool { return false },
		UpdateFunc: func(event.UpdateEvent) bool { return false },
	}
	err = builder.ControllerManagedBy(mgr).
		Named("adopt").
		For(&corev1.Pod{}, builder.WithPredicates(adoptable)).
		// Pools and FixedIPs say as well what a pod of our scheduler has lost.
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(c.ifLost), builder.WithPredicates(source.AfterStart)).
		WatchesRawSource(adopt.Resynced(source.Resync{Clock: c.Clock, Period: source.ResyncPeriod, All: c.allLost, Ready: c.Ready})).
		Watches(&v1alpha1.FixedIP{}, handler.EnqueueRequestsFromMapFunc(ofHolder), builder.WithPredicates(deleted)).
		WithOptions(source.Workers(4)).
		Complete(reconcile.Func(c.adopt))
	if err != nil {
		return fmt.Errorf("set up the controller that adopts pods: %w", err)
	}
	return nil
}

// HolderOf returns the pod that has the IPs of a FixedIP, or had them last, as pool entries name it.
func HolderOf(record *v1alpha1.FixedIP) string {
	if record.Spec.Slot {
		return pool.OwnerKey(record.Namespace, record.Spec.PodName)
	}
	return pool.OwnerKey(record.Namespace, record.Name)
}

// ofReserved returns the request for a pod if anything is reserved for it.
func (c *Controller) ofReserved(ctx context.Context, obj client.Object) []reconcile.Request {
	key := client.ObjectKeyFromObject(obj)
	if len(c.Ledger.Held(key.String())) == 0 && c.Cached.Get(ctx, key, &v1alpha1.FixedIP{}, client.UnsafeDisableDeepCopy) != nil {
		return nil
	}
	return []reconcile.Request{{NamespacedName: key}}
}

// workload returns the workload of a pod; nil if it is a bare pod, or if its workload does not exist.
func (c *Controller) workload(owner identity.Owner, namespace string) (*identity.Workload, error) {
	if owner.IsPod() {
		return nil, nil
	}
	return c.Workloads.Get(owner.GroupKind(), namespace, owner.Name)
}

// policy returns what to do about a mismatch of a pod. workload may be nil.
func (c *Controller) policy(pod *corev1.Pod, workload *identity.Workload) identity.OnMismatch {
	var annotations map[string]string
	if workload != nil {
		annotations = workload.Annotations
	}
	policy, err := identity.MismatchPolicy(annotations, pod.Annotations, identity.OnMismatch(c.Config.OnMismatch))
	if err != nil {
		c.Events.Eventf(pod, nil, corev1.EventTypeWarning, "InvalidAnnotation", "ReadPolicy", "%v; a mismatch is only reported", err)
	}
	return policy
}

// superseded reports whether a step failed because its state has changed since it was decided.
func superseded(err error) bool {
	return errors.Is(err, requeue.ErrSuperseded) || errors.Is(err, ciliumpool.ErrGone) || apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
}
