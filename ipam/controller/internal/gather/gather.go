// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package gather

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reclaim"
)

// Gatherer collects states. It has what the controllers share that decide from them.
type Gatherer struct {
	Ledger *ledger.Ledger
	// Cached reads from the caches, and Live from the API server.
	Cached    client.Reader
	Live      client.Client
	Workloads Workloads
	// Kinds are the kinds of workloads whose pods may have fixed addresses.
	Kinds  identity.Kinds
	Events events.EventRecorder
	Clock  clock.Clock
	// Failover is the policy of FixedIPs that have none.
	Failover v1alpha1.Failover
	// Deadline is reclaim.State.Deadline.
	Deadline time.Duration
}

// Identity returns the state of a pod's identity. ok is false if the name is not one of an identity that has a FixedIP
// or entries: also for the holder of a slot, which Slots returns.
func (g *Gatherer) Identity(ctx context.Context, from Reader, key types.NamespacedName) (s reclaim.State, ok bool, err error) {
	owner := pool.OwnerKey(key.Namespace, key.Name)
	s = reclaim.State{
		Holder:   key.Name,
		Held:     g.Ledger.Held(owner),
		Arriving: g.Ledger.Arriving(owner),
		Away:     g.Ledger.Away(owner),
		Failover: g.Failover,
		Now:      g.Clock.Now(),
		Deadline: g.Deadline,
	}
	if s.Record, err = index.Get[v1alpha1.FixedIP](ctx, from.Objects, key); err != nil {
		return s, false, err
	}
	var gk schema.GroupKind
	switch {
	case s.Record != nil && s.Record.Spec.Slot:
		return s, false, nil
	case s.Record != nil:
		gk, s.Workload.OwnerReference = identity.OwnerOf(s.Record).GroupKind(), s.Record.Spec.Owner
	case len(s.Held) > 0:
		label, name, named := g.Ledger.EntryOf(s.Held[0]).WorkloadRef()
		kind, known := g.Kinds.Labelled(label)
		if named && known && kind.Identity != identity.PodName {
			return s, false, nil
		}
		if named && known && kind.GroupKind() != identity.StatefulSets {
			gk, s.Workload.OwnerReference = kind.GroupKind(), v1alpha1.OwnerReference{Kind: kind.Kind, Name: name}
		}
	case len(s.Arriving)+len(s.Away) > 0:
		// These entries name the pod alone.
		name, named := identity.StatefulSetOf(key.Name)
		if !named {
			return s, false, nil
		}
		gk, s.Workload.OwnerReference = identity.StatefulSets, v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: name}
	default:
		return s, false, nil
	}
	if s.Pod, err = index.Get[corev1.Pod](ctx, from.Objects, key); err != nil {
		return s, false, err
	}
	if s.Record == nil && s.Workload.Name == "" {
		entry := g.Ledger.EntryOf(s.Held[0])
		workload, named := reclaim.InferOwner(key.Name, entry, s.Pod)
		if !named {
			return s, false, nil
		}
		gk, s.Workload.OwnerReference = identity.StatefulSets, workload
		s.Guessed = !reclaim.NamesWorkload(entry, workload)
	}
	g.reports(owner, &s)
	if s.Homes, err = g.homes(ctx, s.Record); err != nil {
		return s, false, err
	}
	if s.Workload.Kind == identity.PodKind {
		g.ownWorkload(&s)
		return s, true, nil
	}
	found, err := from.Workload(ctx, gk, key.Namespace, s.Workload.Name)
	if err != nil || found == nil {
		return s, err == nil, err
	}
	g.describe(&s.Workload, found)
	s.Workload.Excludes = found.Excludes(key.Name)
	failover, err := identity.Failover(found.Annotations, found.Template)
	if err != nil {
		g.Events.Eventf(Object(found), nil, corev1.EventTypeWarning, "InvalidAnnotation", "ReadPolicy", "%v; its pods keep their failover policy", err)
	} else {
		s.Workload.Failover = &failover
	}
	// The annotations of a pod that opted out say nothing of the next pod of its name.
	s.Asked = s.Pod != nil && identity.RequestsIPs(s.Pod.Annotations, found.Annotations)
	return s, true, nil
}

// Slots returns the states of all slots of a workload, named as in pool entries within its namespace: "Kind/name". How
// many slots a workload needs can only be decided for all of them together.
func (g *Gatherer) Slots(ctx context.Context, from Reader, key types.NamespacedName) ([]reclaim.State, error) {
	label, name, _ := strings.Cut(key.Name, "/")
	kind, ok := g.Kinds.Labelled(label)
	if !ok {
		return nil, nil
	}
	resource := identity.Resource(key.Namespace, kind.GroupKind(), name)
	records, err := from.slots(ctx, key.Namespace, resource)
	if err != nil {
		return nil, err
	}
	states := reclaim.Slots(records, g.Ledger.Slots(resource))
	if len(states) == 0 {
		return nil, nil
	}
	found, err := from.Workload(ctx, kind.GroupKind(), key.Namespace, name)
	if err != nil {
		return nil, err
	}
	owner := reclaim.Workload{OwnerReference: v1alpha1.OwnerReference{Kind: kind.Kind, Name: name}}
	if found != nil {
		g.describe(&owner, found)
	}
	for i := range states {
		s := &states[i]
		s.Workload, s.Now, s.Deadline = owner, g.Clock.Now(), g.Deadline
		if s.Holder != "" {
			if s.Pod, err = index.Get[corev1.Pod](ctx, from.Objects, types.NamespacedName{Namespace: key.Namespace, Name: s.Holder}); err != nil {
				return nil, err
			}
		}
		s.Asked = found != nil && s.Pod != nil && identity.RequestsIPs(s.Pod.Annotations, found.Annotations)
		g.reports(pool.OwnerKey(key.Namespace, s.Holder), s)
		if s.Homes, err = g.homes(ctx, s.Record); err != nil {
			return nil, err
		}
	}
	if found != nil {
		for i, surplus := range reclaim.Surplus(states, *found) {
			states[i].Workload.Excludes = surplus
		}
	}
	return states, nil
}

// describe adds what every identity of a workload shares.
func (g *Gatherer) describe(w *reclaim.Workload, found *identity.Workload) {
	w.Exists, w.UID, w.APIVersion = true, found.UID, found.APIVersion
	w.OptsOut = identity.OptsOut(found.Template)
	policy, err := identity.Reclaim(identity.DefaultReclaim(), found.Annotations, found.Template)
	if err != nil {
		g.Events.Eventf(Object(found), nil, corev1.EventTypeWarning, "InvalidAnnotation", "ReadPolicy", "%v; the addresses of its pods keep their reclaim policy", err)
		return
	}
	w.Reclaim = &policy
}

// ownWorkload describes the workload of a bare pod: the pod itself.
func (g *Gatherer) ownWorkload(s *reclaim.State) {
	if s.Pod == nil {
		return
	}
	s.Workload.Exists, s.Workload.UID = true, s.Pod.UID
	s.Asked = identity.RequestsIPs(s.Pod.Annotations, nil)
	policy, err := identity.Reclaim(identity.NamedReclaim(), s.Pod.Annotations)
	if err != nil {
		g.Events.Eventf(s.Pod, nil, corev1.EventTypeWarning, "InvalidAnnotation", "ReadPolicy", "%v; its address keeps its reclaim policy", err)
		if s.Record != nil {
			return
		}
		policy = identity.NamedReclaim()
	}
	s.Workload.Reclaim = &policy
}

// Object returns the object that events about a workload are about.
func Object(w *identity.Workload) runtime.Object {
	return &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: w.APIVersion, Kind: w.Kind},
		ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: w.Name, UID: w.UID},
	}
}
