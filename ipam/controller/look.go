package controller

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
)

// absenceCounts is how long a workload that the API server did not have counts as absent, as long as
// the cache does not have it either. A workload with a thousand pods is not asked for a thousand
// times when it is deleted.
const absenceCounts = 500 * time.Millisecond

// look reads what a release on one node depends on: FixedIPs from the cache, since their deletion
// names the version that was read; pods from a list of the node's that the API server has just made,
// and those elsewhere from the cache; workloads from the API server.
type look struct {
	// Reader is the cache.
	client.Reader
	live client.Reader
	node string
	// pods are those on the node. Key: namespace/name.
	pods     map[string]*corev1.Pod
	absences *absences
}

// Get reads one object.
func (l look) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	switch o := obj.(type) {
	case *v1alpha1.FixedIP:
		return l.Reader.Get(ctx, key, obj, opts...)
	case *corev1.Pod:
		if p, ok := l.pods[key.String()]; ok {
			p.DeepCopyInto(o)
			return nil
		}
		if err := l.Reader.Get(ctx, key, o, opts...); err != nil {
			return err
		}
		if o.Spec.NodeName == l.node {
			return apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, key.Name)
		}
		return nil
	}
	return l.live.Get(ctx, key, obj, opts...)
}

// workload reads the owner of an identity; nil where there is none.
func (l look) workload(ctx context.Context, store workloadStore, gk schema.GroupKind, namespace, name string) (*identity.Workload, error) {
	key := absence{gk, types.NamespacedName{Namespace: namespace, Name: name}}
	if l.absences.has(key) {
		if w, err := store.Get(gk, namespace, name); err == nil && w == nil {
			return nil, nil
		}
	}
	w, err := store.Live(ctx, gk, namespace, name)
	if err == nil && w == nil {
		l.absences.note(key)
	}
	return w, err
}

// absences remember which objects the API server did not have a moment ago.
type absences struct {
	clock clock.Clock
	mu    sync.Mutex
	// seen is when an object was not there. An old entry is of no use and goes with the next that comes.
	seen map[absence]time.Time
}

type absence struct {
	kind schema.GroupKind
	key  types.NamespacedName
}

func (a *absences) has(key absence) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	at, ok := a.seen[key]
	return ok && a.clock.Since(at) < absenceCounts
}

func (a *absences) note(key absence) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for k, at := range a.seen {
		if a.clock.Since(at) >= absenceCounts {
			delete(a.seen, k)
		}
	}
	a.seen[key] = a.clock.Now()
}
