// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package gather collects the state of an identity into a reclaim.State: from the caches, from the API server, or from a
// Reader that a controller provides.
//
// It writes no object except events about invalid annotations. If the objects are not sufficient evidence, it makes
// barrier requests (Prove). Pools always come from the ledger: this is safe because each write has the entries of the
// decision as a precondition. The other pods and FixedIPs that have an address, and the node of its subnet, always come from
// the ledger and the caches (homes.go).
package gather

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reclaim"
)

// ErrSuperseded means that the state has changed since the action was decided.
var ErrSuperseded = errors.New("the state has changed since the action was decided; the action is decided again")

// Gatherer collects states. It has the dependencies that the controllers share.
type Gatherer struct {
	Ledger *ledger.Ledger
	// Cached reads from the caches, and Live from the API server.
	Cached    client.Reader
	Live      client.Client
	Workloads Workloads
	Agents    Agents
	// Kinds are the kinds of workloads whose pods may have fixed addresses.
	Kinds  identity.Kinds
	Events events.EventRecorder
	Clock  clock.Clock
	// Failover is the failover policy of FixedIPs that have none.
	Failover v1alpha1.Failover
	// Deadline is the value of reclaim.State.Deadline.
	Deadline time.Duration
}

// Reader reads the objects that a decision depends on.
type Reader struct {
	// Objects reads FixedIPs and pods.
	Objects client.Reader
	// Workload returns a workload, or nil if the workload does not exist. It returns workloads.ErrUnknown if it is not known
	// whether the workload exists.
	Workload func(ctx context.Context, gk schema.GroupKind, namespace, name string) (*identity.Workload, error)
	// cached is true if Objects has the indexes of package index.
	cached bool
}

// Workloads reads workloads: Get from the caches, and Live from the API server.
type Workloads interface {
	Get(gk schema.GroupKind, namespace, name string) (*identity.Workload, error)
	Live(ctx context.Context, gk schema.GroupKind, namespace, name string) (*identity.Workload, error)
	// Controller implements identity.Controllers.
	Controller(namespace string, of metav1.OwnerReference) (by *metav1.OwnerReference, known bool)
}

// FromCaches returns a Reader of the caches.
func (g *Gatherer) FromCaches() Reader {
	get := func(_ context.Context, gk schema.GroupKind, namespace, name string) (*identity.Workload, error) {
		return g.Workloads.Get(gk, namespace, name)
	}
	return Reader{Objects: g.Cached, Workload: get, cached: true}
}

// FromAPIServer returns a Reader of the API server.
func (g *Gatherer) FromAPIServer() Reader {
	return Reader{Objects: g.Live, Workload: g.Workloads.Live}
}

// slots returns the FixedIPs of the slots of a workload. resource is the name of the workload in pool entries:
// "namespace/Kind/name".
func (r Reader) slots(ctx context.Context, namespace, resource string) ([]v1alpha1.FixedIP, error) {
	var of client.ListOption = client.InNamespace(namespace)
	if r.cached {
		of = index.OfWorkload(resource)
	}
	var list v1alpha1.FixedIPList
	if err := r.Objects.List(ctx, &list, of); err != nil {
		return nil, fmt.Errorf("list the FixedIPs of %s: %w", resource, err)
	}
	return slices.DeleteFunc(list.Items, func(record v1alpha1.FixedIP) bool {
		return record.Spec.AssignedTo != v1alpha1.Slot || identity.OwnerOf(&record).Resource(namespace) != resource
	}), nil
}

// Identity returns the state of the identity with the namespace and the name of a pod. ok is false if the identity
// has neither a FixedIP nor entries, or if the workload of its entries cannot be determined. ok is also false if the
// FixedIP or the entries are those of a slot: Slots returns the state of slots. The error matches workloads.ErrUnknown if it
// is not known whether the workload exists.
func (g *Gatherer) Identity(ctx context.Context, from Reader, key client.ObjectKey) (s reclaim.State, ok bool, err error) {
	owner := pool.OwnerKey(key.Namespace, key.Name)
	s = reclaim.State{
		Holder:      key.Name,
		Held:        g.Ledger.Held(owner),
		MoveTargets: g.Ledger.MoveTargets(owner),
		Moved:       g.Ledger.Moved(owner),
		Failover:    g.Failover,
		Now:         g.Clock.Now(),
		Deadline:    g.Deadline,
	}
	if s.Record, err = index.Get[v1alpha1.FixedIP](ctx, from.Objects, key); err != nil {
		return s, false, err
	}
	var gk schema.GroupKind
	switch {
	case s.Record != nil && s.Record.Spec.AssignedTo == v1alpha1.Slot:
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
	case len(s.MoveTargets)+len(s.Moved) > 0:
		// These entries name the pod, but not its workload.
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
		s.OwnerInferred = !reclaim.NamesWorkload(entry, workload)
	}
	g.reports(owner, &s)
	if s.Homes, err = g.addressHomes(ctx, s.Record); err != nil {
		return s, false, err
	}
	if s.HomeMissing, err = g.homeMissing(ctx, s.Record); err != nil {
		return s, false, err
	}
	if s.OtherFixedIP, err = g.otherFixedIP(ctx, owner, &s); err != nil {
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
		// The action is not that of an invalid reclaim policy: events that differ only in their notes are merged.
		g.Events.Eventf(Object(found), nil, corev1.EventTypeWarning, "InvalidAnnotation", "ReadFailover", "%v; FixedIPs keep their failover policy, and new ones get the default", err)
	} else {
		s.Workload.Failover = &failover
	}
	s.RequestsIPs = s.Pod != nil && identity.RequestsIPs(s.Pod.Annotations, found.Annotations)
	return s, true, nil
}

// Slots returns the states of all slots of a workload. key.Name is "Kind/name" of the workload, as in pool entries. The number
// of slots that the workload needs can only be decided for all of them together. Slots returns nil if the workload has no slot
// or its kind is not configured. The error matches workloads.ErrUnknown if it is not known whether the workload exists.
func (g *Gatherer) Slots(ctx context.Context, from Reader, key client.ObjectKey) ([]reclaim.State, error) {
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
	workload := reclaim.Workload{OwnerReference: v1alpha1.OwnerReference{Kind: kind.Kind, Name: name}}
	if found != nil {
		g.describe(&workload, found)
	}
	for i := range states {
		s := &states[i]
		s.Workload, s.Now, s.Deadline = workload, g.Clock.Now(), g.Deadline
		if s.Holder != "" {
			if s.Pod, err = index.Get[corev1.Pod](ctx, from.Objects, client.ObjectKey{Namespace: key.Namespace, Name: s.Holder}); err != nil {
				return nil, err
			}
			if s.Pod != nil && podutil.IsTerminal(s.Pod) {
				// A terminal pod, such as one that the kubelet has evicted, may exist for a long time but does
				// not run again: its slot is free.
				s.Pod = nil
			}
		}
		s.RequestsIPs = found != nil && s.Pod != nil && identity.RequestsIPs(s.Pod.Annotations, found.Annotations)
		owner := pool.OwnerKey(key.Namespace, s.Holder)
		g.reports(owner, s)
		if s.Homes, err = g.addressHomes(ctx, s.Record); err != nil {
			return nil, err
		}
		if s.OtherFixedIP, err = g.otherFixedIP(ctx, owner, s); err != nil {
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

// describe sets Exists, UID, APIVersion, OptsOut and Reclaim in w from the workload that was found. If the reclaim policy is
// invalid, describe reports that in an event and leaves w.Reclaim nil.
func (g *Gatherer) describe(w *reclaim.Workload, found *identity.Workload) {
	w.Exists, w.UID, w.APIVersion = true, found.UID, found.APIVersion
	// The annotations of existing pods do not count here: the next pod of the identity may have others.
	w.OptsOut = found.OptsOut()
	policy, err := identity.Reclaim(identity.DefaultReclaim(), found.Annotations, found.Template)
	if err != nil {
		g.Events.Eventf(Object(found), nil, corev1.EventTypeWarning, "InvalidAnnotation", "ReadReclaim", "%v; FixedIPs keep their reclaim policy, and new ones get the default", err)
		return
	}
	w.Reclaim = &policy
}

// ownWorkload sets the workload of the identity of a bare pod to the pod itself.
func (g *Gatherer) ownWorkload(s *reclaim.State) {
	if s.Pod == nil {
		return
	}
	s.Workload.Exists, s.Workload.UID = true, s.Pod.UID
	s.RequestsIPs = identity.RequestsIPs(s.Pod.Annotations, nil)
	if failover, err := identity.Failover(s.Pod.Annotations, nil); err != nil {
		g.Events.Eventf(s.Pod, nil, corev1.EventTypeWarning, "InvalidAnnotation", "ReadFailover", "%v; a FixedIP of the pod keeps its failover policy, and a new one gets the default", err)
	} else if failover != "" {
		// Without the annotation, the FixedIP keeps the policy in spec.failover, which a user may have set: kubectl fixedip move
		// does that. The next bare pod with the same name usually lacks the annotation too.
		s.Workload.Failover = &failover
	}
	policy, err := identity.Reclaim(identity.NamedReclaim(), s.Pod.Annotations)
	if err != nil {
		g.Events.Eventf(s.Pod, nil, corev1.EventTypeWarning, "InvalidAnnotation", "ReadReclaim", "%v; a FixedIP of the pod keeps its reclaim policy, and a new one gets the default", err)
		if s.Record != nil {
			return
		}
		policy = identity.NamedReclaim()
	}
	s.Workload.Reclaim = &policy
}

// Object returns a reference to a workload, for events.
func Object(w *identity.Workload) runtime.Object {
	return &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: w.APIVersion, Kind: w.Kind},
		ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: w.Name, UID: w.UID},
	}
}

// reports adds to the state the held addresses that agents report as used, and a blocker for each of them that is reported for
// another pod or for the node itself. A use that is reported without an owner is no blocker.
func (g *Gatherer) reports(owner string, s *reclaim.State) {
	for _, h := range s.Held {
		n, _ := g.Ledger.Node(h.Node)
		for _, a := range h.Addrs {
			user, used := n.Used[a]
			if used {
				s.Reported = append(s.Reported, a)
			}
			if used && user != "" && user != owner {
				named, help := pool.RedactOwner(user, owner), "; delete that pod if it still runs with the IP"
				switch {
				case !pool.IsPodKey(user):
					named, help = fmt.Sprintf("owner %q", user), ""
				case named == user:
					named = "pod " + user
				}
				s.Blockers = append(s.Blockers, reclaim.ReleaseBlocker{Addr: a, User: user, Why: fmt.Sprintf("IP %s is still in use by %s on node %s; release is blocked until the agent no longer reports that use%s", a, named, h.Node, help)})
			}
		}
	}
}
