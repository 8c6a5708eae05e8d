// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package workloads

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/store/watch"
)

// ErrUnknown means that the Store cannot tell whether a workload exists: the workloads of its kind have not been listed
// yet, the kind is not configured, or the API server does not serve the kind.
var ErrUnknown = errors.New("the workloads of this kind are not known: the kind is not configured, the API server does not serve it, or its workloads have not been listed yet")

const (
	// firstLookup and lastLookup are the first and the longest interval between two lookups of a kind whose API is not
	// installed.
	firstLookup = time.Second
	lastLookup  = 30 * time.Second
)

// Store contains the known workloads. It is safe for concurrent use.
type Store struct {
	client dynamic.Interface
	mapper meta.RESTMapper
	kinds  []schema.GroupKind
	// controllersOnly are the kinds that only Controller uses. They are not in kinds.
	controllersOnly []schema.GroupKind

	mu sync.RWMutex
	// informers contains the informers in use, which are never removed. Key: the kind.
	informers map[schema.GroupKind]workloadInformer
	// handlers are called for each change (AddHandler). before is nil for a new workload, after is nil for a deleted one.
	handlers []func(before, after *identity.Workload)
}

type workloadInformer struct {
	indexer toolscache.Indexer
	synced  toolscache.InformerSynced
}

// New returns a Store of the given kinds. The client reads workloads; the mapper maps kinds to resources, and may
// learn a kind later.
func New(client dynamic.Interface, mapper meta.RESTMapper, kinds ...schema.GroupKind) *Store {
	return &Store{client: client, mapper: mapper, kinds: kinds, informers: map[schema.GroupKind]workloadInformer{}}
}

// WatchForControllers makes Start watch the workloads of a further kind, only for Controller: Get and Live return ErrUnknown for
// them, and handlers are not called. Call it before Start.
func (s *Store) WatchForControllers(gk schema.GroupKind) {
	s.controllersOnly = append(s.controllersOnly, gk)
}

// AddHandler registers a function that is called for each new, changed and deleted workload, after the Store contains the
// change. A change of fields that identity.Workload does not have causes no call. Call AddHandler before Start and UseInformer.
func (s *Store) AddHandler(f func(before, after *identity.Workload)) {
	s.handlers = append(s.handlers, f)
}

// UseInformer makes the Store use an existing informer for a kind. The caller runs the informer, and calls UseInformer
// before Start.
func (s *Store) UseInformer(gk schema.GroupKind, informer toolscache.SharedIndexInformer) error {
	notify := s.notify
	if slices.Contains(s.controllersOnly, gk) {
		notify = func(_, _ any) {}
	}
	registration, err := informer.AddEventHandler(watch.Handler(notify))
	if err != nil {
		return fmt.Errorf("add an event handler for %s: %w", gk, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.informers[gk] = workloadInformer{indexer: informer.GetIndexer(), synced: registration.HasSynced}
	return nil
}

// Start watches the workloads of the kinds for which UseInformer was not called, until ctx ends. A manager can run the
// Store (manager.Runnable), on every replica.
func (s *Store) Start(ctx context.Context) error {
	var watches sync.WaitGroup
	for _, gk := range slices.Concat(s.kinds, s.controllersOnly) {
		s.mu.RLock()
		_, used := s.informers[gk]
		s.mu.RUnlock()
		if !used {
			watches.Go(func() { s.watch(ctx, gk) })
		}
	}
	watches.Wait()
	return nil
}

// NeedLeaderElection returns false: a replica that becomes leader has the workloads already.
func (s *Store) NeedLeaderElection() bool { return false }

// watch waits for the API of a kind, and then watches the workloads of that kind until ctx ends.
func (s *Store) watch(ctx context.Context, gk schema.GroupKind) {
	logger := klog.FromContext(ctx).WithValues("kind", gk)
	var mapping *meta.RESTMapping
	logged := false
	lookups := wait.Backoff{Duration: firstLookup, Factor: 2, Jitter: 0.2, Cap: lastLookup, Steps: 10}.DelayFunc()
	err := lookups.Until(ctx, true, false, func(context.Context) (found bool, err error) {
		if mapping, err = s.mapper.RESTMapping(gk); err != nil && !logged {
			logger.Info("The API of this kind of workload is not available; the lookup is repeated until the API is available", "err", err)
			logged = true
		}
		return err == nil, nil
	})
	if err != nil {
		return
	}
	informer := dynamicinformer.NewFilteredDynamicInformer(s.client, mapping.Resource, metav1.NamespaceAll, 0, toolscache.Indexers{}, nil).Informer()
	err = informer.SetTransform(func(obj any) (any, error) { return decode(obj) })
	if err = errors.Join(err, s.UseInformer(gk, informer)); err != nil {
		// SetTransform fails only if the informer was started before, and UseInformer only if it was stopped.
		utilruntime.HandleErrorWithContext(ctx, err, "Failed to set up the informer of workloads; the workloads of this kind stay unknown until this program restarts", "kind", gk)
		return
	}
	logger.V(2).Info("Watching workloads", "resource", mapping.Resource)
	informer.RunWithContext(ctx)
}

func (s *Store) notify(before, after any) {
	b, a := workloadOf(before), workloadOf(after)
	if b != nil && a != nil && reflect.DeepEqual(*b, *a) {
		return
	}
	for _, f := range s.handlers {
		f(b, a)
	}
}

// workloadOf returns the workload of an object of an informer; nil if obj is nil or cannot be decoded.
func workloadOf(obj any) *identity.Workload {
	if o, err := decode(obj); err == nil {
		return &o.workload
	}
	return nil
}

// configured returns what find returns; ErrUnknown if the kind is watched only for Controller.
func (s *Store) configured(gk schema.GroupKind, namespace, name string) (*workloadObject, error) {
	if slices.Contains(s.controllersOnly, gk) {
		return nil, fmt.Errorf("%s %s/%s: %w", gk, namespace, name, ErrUnknown)
	}
	return s.find(gk, namespace, name)
}

// find returns a workload, or nil if the workload does not exist. It returns ErrUnknown if the kind is not watched, or if
// the cache does not have the workload and has not synced yet. A workload that the cache has is returned even before the
// cache has synced, so that event handlers find the workload of their event.
func (s *Store) find(gk schema.GroupKind, namespace, name string) (*workloadObject, error) {
	s.mu.RLock()
	w, ok := s.informers[gk]
	s.mu.RUnlock()
	if !ok {
		return nil, fmt.Errorf("%s %s/%s: %w", gk, namespace, name, ErrUnknown)
	}
	obj, exists, err := w.indexer.GetByKey(namespace + "/" + name)
	switch {
	case err != nil:
		return nil, err
	case exists:
		return decode(obj)
	case !w.synced():
		return nil, fmt.Errorf("%s %s/%s: %w", gk, namespace, name, ErrUnknown)
	}
	return nil, nil
}

// Synced reports whether all workloads of a kind that existed at the start have been seen.
func (s *Store) Synced(gk schema.GroupKind) bool {
	s.mu.RLock()
	w, ok := s.informers[gk]
	s.mu.RUnlock()
	return ok && w.synced()
}

// Get returns a workload from the cache of its informer, or nil if the workload does not exist. It returns ErrUnknown if the
// existence of the workload is not known.
func (s *Store) Get(gk schema.GroupKind, namespace, name string) (*identity.Workload, error) {
	o, err := s.configured(gk, namespace, name)
	if err != nil || o == nil {
		return nil, err
	}
	return &o.workload, nil
}

// Live reads a workload from the API server. It returns nil if the API server responds that the object does not exist, and
// ErrUnknown if Get returns ErrUnknown or the API server does not serve the resource.
func (s *Store) Live(ctx context.Context, gk schema.GroupKind, namespace, name string) (*identity.Workload, error) {
	if _, err := s.configured(gk, namespace, name); err != nil {
		return nil, err
	}
	mapping, err := s.mapper.RESTMapping(gk)
	switch {
	case meta.IsNoMatchError(err):
		return nil, fmt.Errorf("map %s to a resource: %w: %w", gk, ErrUnknown, err)
	case err != nil:
		return nil, fmt.Errorf("map %s to a resource: %w", gk, err)
	}
	obj, err := s.client.Resource(mapping.Resource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) && apierrors.IsNotFound(err):
		// The API server has no such resource: the version is no longer served, or the CRD was deleted.
		return nil, fmt.Errorf("read %s %s/%s: %w: %w", gk, namespace, name, ErrUnknown, err)
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read %s %s/%s: %w", gk, namespace, name, err)
	}
	return Decode(obj), nil
}

// Controller returns the controller of the workload that an owner reference names, for example the Deployment of a
// ReplicaSet; nil if the workload has no controller. known is false if the Store does not have the workload, or has it with
// another UID. The method is an identity.Controllers.
func (s *Store) Controller(namespace string, of metav1.OwnerReference) (by *metav1.OwnerReference, known bool) {
	o, err := s.find(schema.FromAPIVersionAndKind(of.APIVersion, of.Kind).GroupKind(), namespace, of.Name)
	if err != nil || o == nil || o.UID != of.UID {
		return nil, false
	}
	return o.controller, true
}

// workloadObject contains the fields of a workload that informers store: a cluster has many workloads, and most of their
// fields are not used.
type workloadObject struct {
	// ObjectMeta contains the name and namespace, from which caches make the key.
	metav1.ObjectMeta
	workload identity.Workload
	// controller is the controller of the object; nil if there is none.
	controller *metav1.OwnerReference
}

// GetObjectKind returns an empty kind, like that of a decoded typed object. workload.GroupKind contains the kind.
func (s *workloadObject) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject returns the same object, because the object is never changed.
func (s *workloadObject) DeepCopyObject() runtime.Object { return s }

// surges contains the paths of the fields that define how many pods an update may add: in a Deployment, in a Rollout of
// Argo, and in a CloneSet of OpenKruise.
var surges = [][]string{
	{"spec", "strategy", "rollingUpdate", "maxSurge"},
	{"spec", "strategy", "canary", "maxSurge"},
	{"spec", "updateStrategy", "maxSurge"},
}

// decode converts an object of an informer: a typed StatefulSet or ReplicaSet, an unstructured object, or a
// *workloadObject, which it returns as it is.
func decode(obj any) (*workloadObject, error) {
	switch o := obj.(type) {
	case *workloadObject:
		return o, nil
	case *appsv1.StatefulSet:
		s := described(o, appsv1.SchemeGroupVersion.WithKind("StatefulSet"))
		s.workload.Template, s.workload.HostNetwork = o.Spec.Template.Annotations, o.Spec.Template.Spec.HostNetwork
		s.workload.Replicas = o.Spec.Replicas
		if o.Spec.Ordinals != nil {
			s.workload.FirstOrdinal = o.Spec.Ordinals.Start
		}
		return s, nil
	case *appsv1.ReplicaSet:
		s := described(o, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))
		s.workload.Template, s.workload.HostNetwork = o.Spec.Template.Annotations, o.Spec.Template.Spec.HostNetwork
		s.workload.Replicas = o.Spec.Replicas
		return s, nil
	case *unstructured.Unstructured:
		return fromUnstructured(o), nil
	}
	return nil, fmt.Errorf("cannot decode a workload from the type %T", obj)
}

// described returns a workloadObject with the fields that every kind of workload has in its metadata.
func described(o metav1.Object, gvk schema.GroupVersionKind) *workloadObject {
	return &workloadObject{
		ObjectMeta: metav1.ObjectMeta{Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion()},
		workload: identity.Workload{
			GroupKind:   gvk.GroupKind(),
			APIVersion:  gvk.GroupVersion().String(),
			Namespace:   o.GetNamespace(),
			Name:        o.GetName(),
			UID:         o.GetUID(),
			Annotations: o.GetAnnotations(),
		},
		controller: metav1.GetControllerOf(o),
	}
}

// Decode converts an unstructured workload of any kind.
func Decode(o *unstructured.Unstructured) *identity.Workload { return &fromUnstructured(o).workload }

// fromUnstructured reads the fields of any kind that have the same path as in a StatefulSet or a Deployment, and the paths in
// surges. A field of an unexpected type counts as absent. If spec.reserveOrdinals is invalid, fromUnstructured sets
// Uncounted.
func fromUnstructured(o *unstructured.Unstructured) *workloadObject {
	s := described(o, o.GroupVersionKind())
	s.workload.Template, _, _ = unstructured.NestedStringMap(o.Object, "spec", "template", "metadata", "annotations")
	s.workload.HostNetwork, _, _ = unstructured.NestedBool(o.Object, "spec", "template", "spec", "hostNetwork")
	if n, ok := count(o, "spec", "replicas"); ok {
		s.workload.Replicas = &n
	}
	s.workload.FirstOrdinal, _ = count(o, "spec", "ordinals", "start")
	reserved, _, err := unstructured.NestedFieldNoCopy(o.Object, "spec", "reserveOrdinals")
	if s.workload.Reserved, err = ordinals(reserved, err); err != nil {
		s.workload.Uncounted = true
	}
	for _, path := range surges {
		switch v, _, _ := unstructured.NestedFieldNoCopy(o.Object, path...); v := v.(type) {
		case int64:
			s.workload.Surge = int32(min(max(v, 0), math.MaxInt32))
		case string:
			s.workload.Surge = surge(v, s.workload.Replicas)
		}
	}
	return s
}

// ordinals reads spec.reserveOrdinals of OpenKruise's StatefulSet: ordinals, and ranges such as "5-8". v is the field and
// err the error of reading the field. The result is sorted and disjoint.
func ordinals(v any, err error) ([]identity.OrdinalRange, error) {
	list, isList := v.([]any)
	if err != nil || v != nil && !isList {
		return nil, fmt.Errorf("reserveOrdinals is not a list: %v", v)
	}
	var ranges []identity.OrdinalRange
	for _, v := range list {
		first, last, isRange := strings.Cut(fmt.Sprint(v), "-")
		if !isRange {
			last = first
		}
		from, fromErr := strconv.ParseInt(strings.TrimSpace(first), 10, 32)
		to, toErr := strconv.ParseInt(strings.TrimSpace(last), 10, 32)
		if fromErr != nil || toErr != nil || from < 0 || to < from {
			return nil, fmt.Errorf("reserveOrdinals: %v is neither an ordinal nor a range of ordinals", v)
		}
		ranges = append(ranges, identity.OrdinalRange{First: int32(from), Last: int32(to)})
	}
	slices.SortFunc(ranges, func(a, b identity.OrdinalRange) int { return cmp.Compare(a.First, b.First) })
	var disjoint []identity.OrdinalRange
	for _, r := range ranges {
		if last := len(disjoint) - 1; last >= 0 && r.First <= disjoint[last].Last {
			disjoint[last].Last = max(disjoint[last].Last, r.Last)
			continue
		}
		disjoint = append(disjoint, r)
	}
	return disjoint, nil
}

// count returns the number at a path. It returns false if there is no number, or if the number is negative or does not fit
// into an int32: no address is released because of such a number.
func count(o *unstructured.Unstructured, path ...string) (int32, bool) {
	n, ok, _ := unstructured.NestedInt64(o.Object, path...)
	if !ok || n < 0 || n > math.MaxInt32 {
		return 0, false
	}
	return int32(n), true
}

// surge converts a maxSurge in percent of the replicas to a number of pods, rounded up as by the workload controllers. It
// returns 0 if percent can't be parsed.
func surge(percent string, replicas *int32) int32 {
	surge := intstr.FromString(percent)
	n, err := intstr.GetScaledValueFromIntOrPercent(&surge, int(ptr.Deref(replicas, 0)), true)
	if err != nil {
		return 0
	}
	return int32(min(max(n, 0), math.MaxInt32))
}
