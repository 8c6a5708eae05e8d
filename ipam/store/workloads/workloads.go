// Package workloads reads the workloads that addresses are kept for, of whatever kinds are
// configured: from watches, and from the API server itself where something is to be given up.
//
// It only reads, and decides nothing. A kind whose API is not installed is waited for: what is
// asked about it meanwhile is not known, which is not the same as gone.
package workloads

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/store/packed"
)

// ErrUnknown: the workloads of a kind have not been listed yet, or the kind is not configured.
var ErrUnknown = errors.New("the workloads of this kind are not known yet")

const (
	// A kind that is not there yet is looked for at first after firstLook, and then ever more
	// seldom, but at least every lastLook.
	firstLook = time.Second
	lastLook  = 30 * time.Second
)

// Store is what is known of workloads. It is safe for concurrent use.
type Store struct {
	client dynamic.Interface
	mapper meta.RESTMapper
	kinds  []schema.GroupKind

	mu sync.RWMutex
	// watches are those that have begun. Key: the kind. A watch is never taken away.
	watches map[schema.GroupKind]watched
	// told are called of each change, before or after nil where there was or is no workload.
	told []func(before, after *identity.Workload)
}

type watched struct {
	// resource is empty where the watch is somebody else's.
	resource schema.GroupVersionResource
	indexer  toolscache.Indexer
	synced   toolscache.InformerSynced
}

// New makes a Store of the given kinds. The client reads them; the mapper knows how the API server
// names them, and may learn it late.
func New(client dynamic.Interface, mapper meta.RESTMapper, kinds ...schema.GroupKind) *Store {
	return &Store{client: client, mapper: mapper, kinds: kinds, watches: map[schema.GroupKind]watched{}}
}

// Tell has f called of each change of what is kept of a workload, after the Store shows it. Call it before Start
// and Lend.
func (s *Store) Tell(f func(before, after *identity.Workload)) { s.told = append(s.told, f) }

// Lend gives the Store an informer that somebody else runs, for a kind that it then does not watch
// itself. Call it before Start.
func (s *Store) Lend(gk schema.GroupKind, informer toolscache.SharedIndexInformer) error {
	return s.follow(gk, schema.GroupVersionResource{}, informer)
}

// Start watches until ctx ends. It is a runnable of a manager, on every replica.
func (s *Store) Start(ctx context.Context) error {
	var watches sync.WaitGroup
	for _, gk := range s.kinds {
		s.mu.RLock()
		_, lent := s.watches[gk]
		s.mu.RUnlock()
		if !lent {
			watches.Go(func() { s.watch(ctx, gk) })
		}
	}
	watches.Wait()
	return nil
}

// NeedLeaderElection says no: a replica that comes to lead has the workloads already.
func (s *Store) NeedLeaderElection() bool { return false }

// watch waits for a kind and then watches it until ctx ends.
func (s *Store) watch(ctx context.Context, gk schema.GroupKind) {
	logger := klog.FromContext(ctx).WithValues("kind", gk)
	told := false
	look := wait.Backoff{Duration: firstLook, Factor: 2, Jitter: 0.2, Cap: lastLook, Steps: 10}
	for {
		mapping, err := s.mapper.RESTMapping(gk)
		if err == nil {
			informer := newInformer(s.client.Resource(mapping.Resource))
			if err = informer.SetTransform(func(obj any) (any, error) { return decode(obj) }); err == nil {
				err = s.follow(gk, mapping.Resource, informer)
			}
			if err == nil {
				logger.V(2).Info("Workloads are watched", "resource", mapping.Resource)
				informer.RunWithContext(ctx)
				return
			}
		}
		if !told {
			logger.Info("Workloads of this kind can't be watched yet; they are looked for again and again", "err", err)
			told = true
		}
		select {
		case <-time.After(look.Step()):
		case <-ctx.Done():
			return
		}
	}
}

// newInformer watches all workloads of a resource. What it lists is decoded page by page.
func newInformer(api dynamic.NamespaceableResourceInterface) toolscache.SharedIndexInformer {
	return toolscache.NewSharedIndexInformer(&toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			page := func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return api.List(ctx, o) }
			return packed.List(ctx, page, o, func(obj runtime.Object) (runtime.Object, error) { return decode(obj) })
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return api.Watch(ctx, o) },
	}, &unstructured.Unstructured{}, 0, toolscache.Indexers{})
}

// follow takes an informer's workloads for those of a kind.
func (s *Store) follow(gk schema.GroupKind, resource schema.GroupVersionResource, informer toolscache.SharedIndexInformer) error {
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { s.tell(nil, obj) },
		UpdateFunc: s.tell,
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			s.tell(obj, nil)
		},
	})
	if err != nil {
		return fmt.Errorf("watch %s: %w", gk, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watches[gk] = watched{resource: resource, indexer: informer.GetIndexer(), synced: registration.HasSynced}
	return nil
}

func (s *Store) tell(before, after any) {
	var b, a *identity.Workload
	if o, err := decode(before); before != nil && err == nil {
		b = &o.workload
	}
	if o, err := decode(after); after != nil && err == nil {
		a = &o.workload
	}
	if b != nil && a != nil && reflect.DeepEqual(*b, *a) {
		return
	}
	for _, f := range s.told {
		f(b, a)
	}
}

// find looks a workload up. One that is there counts before all have been listed: whoever was told
// of it finds it.
func (s *Store) find(gk schema.GroupKind, namespace, name string) (*seen, watched, error) {
	s.mu.RLock()
	w, ok := s.watches[gk]
	s.mu.RUnlock()
	if !ok {
		return nil, w, fmt.Errorf("%s %s/%s: %w", gk, namespace, name, ErrUnknown)
	}
	obj, exists, err := w.indexer.GetByKey(namespace + "/" + name)
	switch {
	case err != nil:
		return nil, w, err
	case exists:
		o, err := decode(obj)
		return o, w, err
	case !w.synced():
		return nil, w, fmt.Errorf("%s %s/%s: %w", gk, namespace, name, ErrUnknown)
	}
	return nil, w, nil
}

// Synced tells whether all workloads of a kind that stood at the start have been seen.
func (s *Store) Synced(gk schema.GroupKind) bool {
	s.mu.RLock()
	w, ok := s.watches[gk]
	s.mu.RUnlock()
	return ok && w.synced()
}

// Get is a workload as its watch shows it; nil where there is none. ErrUnknown where that can't be
// told.
func (s *Store) Get(gk schema.GroupKind, namespace, name string) (*identity.Workload, error) {
	o, _, err := s.find(gk, namespace, name)
	if err != nil || o == nil {
		return nil, err
	}
	return &o.workload, nil
}

// Live returns a workload as the API server has it, or nil if the API server says that this object does not exist.
// It returns ErrUnknown if the kind is not watched yet, or if the API server does not serve the resource.
func (s *Store) Live(ctx context.Context, gk schema.GroupKind, namespace, name string) (*identity.Workload, error) {
	_, w, err := s.find(gk, namespace, name)
	if err != nil {
		return nil, err
	}
	resource := w.resource
	if resource.Empty() {
		mapping, err := s.mapper.RESTMapping(gk)
		if err != nil {
			return nil, fmt.Errorf("find the resource of %s: %w", gk, err)
		}
		resource = mapping.Resource
	}
	obj, err := s.client.Resource(resource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
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

// Controller finds what controls a controller of pods, as identity.Controllers wants it.
func (s *Store) Controller(namespace string, of metav1.OwnerReference) (by *metav1.OwnerReference, known bool) {
	o, _, err := s.find(schema.FromAPIVersionAndKind(of.APIVersion, of.Kind).GroupKind(), namespace, of.Name)
	if err != nil || o == nil || o.UID != of.UID {
		return nil, false
	}
	return o.controller, true
}
