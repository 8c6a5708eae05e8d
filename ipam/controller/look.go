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

// absenceCounts is how long a workload that the API server did not have when it was asked counts as
// absent, as long as the cache does not have it either. A workload with a thousand pods is not asked
// for a thousand times when it is deleted.
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
	pods map[string]*corev1.Pod
	// workloads are those of the node's identities, as they were when the pods were listed; nil: the API
	// server did not have it. What many replicas on the node belong to is asked for once.
	workloads map[absence]*identity.Workload
	absences  *absences
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
	w, asked := l.workloads[key]
	if w != nil {
		return w, nil
	}
	if asked || l.absences.has(ctx, key) {
		if w, err := store.Get(gk, namespace, name); err == nil && w == nil {
			return nil, nil
		}
	}
	answered := l.absences.ask(key)
	w, err := store.Live(ctx, gk, namespace, name)
	answered(err == nil && w == nil)
	return w, err
}

// absences remember which objects the API server did not have a moment ago, and which it is being asked
// for: the nodes of a workload that is deleted ask for it at the same time.
type absences struct {
	clock clock.Clock
	mu    sync.Mutex
	// questions are those that were asked last. One that is old is of no use and goes with the next that
	// is asked.
	questions map[absence]*question
}

type absence struct {
	kind schema.GroupKind
	key  types.NamespacedName
}

// question is whether an object is absent.
type question struct {
	// asked is when. What the answer says was so at that moment or later.
	asked    time.Time
	answered chan struct{}
	// absent is the answer, once there is one.
	absent bool
}

func newAbsences(c clock.Clock) *absences {
	return &absences{clock: c, questions: map[absence]*question{}}
}

// has tells whether an object was absent a moment ago. It waits for an answer that is on its way.
func (a *absences) has(ctx context.Context, key absence) bool {
	a.mu.Lock()
	q, ok := a.questions[key]
	ok = ok && a.clock.Since(q.asked) < absenceCounts
	a.mu.Unlock()
	if !ok {
		return false
	}
	select {
	case <-q.answered:
		return q.absent
	case <-ctx.Done():
		return false
	}
}

// ask notes that the API server is being asked for an object. Call answered with what it says.
func (a *absences) ask(key absence) (answered func(absent bool)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for k, q := range a.questions {
		if a.clock.Since(q.asked) >= absenceCounts {
			delete(a.questions, k)
		}
	}
	q := &question{asked: a.clock.Now(), answered: make(chan struct{})}
	a.questions[key] = q
	return func(absent bool) {
		q.absent = absent
		close(q.answered)
	}
}
