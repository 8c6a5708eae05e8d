// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/ciliumendpoint"
	"fixedip.io/fixedip/ipam/controller/internal/gather"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/core/conformance"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/ipam/store/workloads"
)

// Config says what is done about pods and CiliumEndpoints that are not as recorded.
type Config struct {
	// OnMismatch is the policy of workloads without one.
	OnMismatch string
	// RestartAfter is how long a pod runs with a wrong IP, while its own is in the pool, before it is evicted.
	RestartAfter time.Duration
	// Restarts is how many pods may be restarting at a time.
	Restarts int
	// Endpoints is whether CiliumEndpoints are kept.
	Endpoints bool
	// EndpointPatience is how long agents have to resolve an issue of a CiliumEndpoint themselves.
	EndpointPatience time.Duration
	// EndpointTermination is how long finalizers may hold a CiliumEndpoint.
	EndpointTermination time.Duration
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		OnMismatch:          string(identity.Restart),
		RestartAfter:        20 * time.Second,
		Restarts:            5,
		Endpoints:           true,
		EndpointPatience:    time.Minute,
		EndpointTermination: 30 * time.Minute,
	}
}

// Controller runs the controllers verify and adopt. A request names a pod; for verify it is the pod of an identity, or
// the holder of a slot.
type Controller struct {
	*gather.Gatherer
	Config   Config
	Writer   *ciliumpool.Writer
	Adoption identity.Adoption
	// Endpoints is nil if CiliumEndpoints are not kept.
	Endpoints *ciliumendpoint.Keeper
	// Ready must report true before the first resync.
	Ready func() bool

	// mu guards the maps. It is not held during a request.
	mu sync.Mutex
	// begun are restarts that the cached FixedIPs may not show yet. Key: the FixedIP, or the pod if there is none.
	begun map[client.ObjectKey]restart
	// backoffs are the pods that are not evicted again at once. Key: as of begun. They are lost with the process: the
	// first eviction after that comes sooner.
	backoffs map[client.ObjectKey]backoff
}

// Setup adds both controllers to a manager. verify reports pods whose entries, FixedIPs or CiliumEndpoints have changed,
// and adopt those whose entries or FixedIPs have.
func (c *Controller) Setup(ctx context.Context, mgr ctrl.Manager, verify, adopt *source.Feed, owners *workloads.Store) error {
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
	ofHolder := func(_ context.Context, obj client.Object) []ctrl.Request {
		return source.Request(HolderOf(obj.(*v1alpha1.FixedIP)))
	}
	identities := func() []string { return source.Identities(c.Ledger) }
	err := ctrl.NewControllerManagedBy(mgr).
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
	err = ctrl.NewControllerManagedBy(mgr).
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
func (c *Controller) ofReserved(ctx context.Context, obj client.Object) []ctrl.Request {
	key := client.ObjectKeyFromObject(obj)
	if len(c.Ledger.Held(key.String())) == 0 && c.Cached.Get(ctx, key, &v1alpha1.FixedIP{}, client.UnsafeDisableDeepCopy) != nil {
		return nil
	}
	return []ctrl.Request{{NamespacedName: key}}
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
	return errors.Is(err, gather.ErrSuperseded) || errors.Is(err, ciliumpool.ErrGone) || apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
}
