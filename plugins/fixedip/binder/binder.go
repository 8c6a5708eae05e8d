// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	fwk "k8s.io/kube-scheduler/framework"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/configuration"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/nodeutil"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/watch"
	"fixedip.io/fixedip/plugins/apis/config"
	"fixedip.io/fixedip/plugins/fixedip/cache"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
	"fixedip.io/fixedip/plugins/fixedip/requeue"
)

// ErrNotReady is the error of Find for a pod with a fixed address, and of Fits for an unreserved pod on a strict node, until
// the cache has all CiliumNodes and FixedIPs: a decision from a part of the cluster could be wrong.
var ErrNotReady = errors.New("not all CiliumNodes and FixedIPs have been listed since the scheduler started; the pod is tried again; if the listing does not complete, check that the CRDs of both kinds are installed, and that the scheduler may list and watch them")

// Refusal is the error for a pod that cannot be placed now. WakeOn contains the causes that may help the pod.
type Refusal struct {
	// Reason is shown in the pod's events. It may be empty if the events show the reasons of the filters.
	Reason string
	WakeOn requeue.WakeOn
}

func (r *Refusal) Error() string { return r.Reason }

// refuse returns a Refusal with a formatted reason.
func refuse(on requeue.WakeOn, format string, args ...any) *Refusal {
	return &Refusal{Reason: fmt.Sprintf(format, args...), WakeOn: on}
}

// Shared contains the state that all profiles of a scheduler share.
type Shared struct {
	Cache *cache.Cache
	// Client reads nodes, and reads and writes pods.
	Client kubernetes.Interface
	Nodes  corelisters.NodeLister
	Pods   corelisters.PodLister
	Quotas corelisters.ResourceQuotaLister

	slots slotWaiters
}

// Binder makes the decisions for the pods of one profile.
type Binder struct {
	*Shared
	// snapshot returns a node of the scheduling cycle; nil if it does not exist. Only Find, Assume and Explain, which the
	// scheduler calls one after the other, may use it.
	snapshot     func(node string) fwk.NodeInfo
	families     []address.Family
	claimTimeout time.Duration
	// failover is the failover policy for workloads that define none.
	failover v1alpha1.Failover
	// movable is true if addresses may be migrated (allowAddressMigration).
	movable bool
	// strict selects the strict nodes, on which unreserved pods need a claim too. strictNodes is the number of strict nodes.
	strict      labels.Selector
	strictNodes atomic.Int64
	// widenNext contains the pods whose next plan may have other nodes than that of the reservation. widened contains
	// the pods that have had such a plan, and so may have preempted pods on another node. Find considers
	// status.nominatedNodeName only for a pod in widened, because another program may have written that field. Key: the
	// UID of a pod that the watch shows.
	widenNext, widened sync.Map
	// orphaned contains the pods that were orphaned at their last plan. Key: the UID of a pod that the watch shows.
	orphaned sync.Map
}

// New returns the Binder of a profile. settings have to be complete and valid.
func New(shared *Shared, args *config.FixedIPArgs, settings configuration.Configuration, snapshot func(node string) fwk.NodeInfo, f informers.SharedInformerFactory) (*Binder, error) {
	b := &Binder{
		Shared: shared, snapshot: snapshot,
		claimTimeout: args.ClaimTimeout.Duration, failover: settings.Failover, movable: settings.MigrationAllowed(),
	}
	var err error
	if b.families, err = settings.Families(); err != nil {
		return nil, err
	}
	if b.strict, err = settings.Strict(); err != nil {
		return nil, fmt.Errorf("strictNodes: %w", err)
	}
	// Queueing hints cannot replace this handler, which also counts the strict nodes: the framework calls hints for
	// each refused pod, and none if no pod was refused.
	if _, err := f.Core().V1().Nodes().Informer().AddEventHandler(watch.Handler(b.nodeChanged)); err != nil {
		return nil, fmt.Errorf("add an event handler for nodes: %w", err)
	}
	if _, err := f.Core().V1().Pods().Informer().AddEventHandler(watch.Handler(func(before, after *corev1.Pod) {
		if after == nil {
			b.Remove(before)
		}
	})); err != nil {
		return nil, fmt.Errorf("add an event handler for pods: %w", err)
	}
	if _, err := f.Core().V1().ResourceQuotas().Informer().AddEventHandler(watch.Handler(b.quotaChanged)); err != nil {
		return nil, fmt.Errorf("add an event handler for ResourceQuotas: %w", err)
	}
	return b, nil
}

// nodeChanged counts the strict nodes. It notifies waiting pods of a node that is deleted, whose readiness or taint
// out-of-service changes, or that is no longer strict, so that unreserved pods need no address there any more. before
// is nil for a created node, after is nil for a deleted one.
func (b *Binder) nodeChanged(before, after *corev1.Node) {
	was, is := b.isStrict(before), b.isStrict(after)
	switch {
	case is && !was:
		b.strictNodes.Add(1)
	case was && !is:
		b.strictNodes.Add(-1)
		b.Cache.Notify(requeue.Event{Node: before.Name, Freed: requeue.AllFreeAddresses})
	}
	if before != nil && (after == nil || isDown(before) != isDown(after) || nodeutil.IsReady(before) != nodeutil.IsReady(after)) {
		b.Cache.Notify(requeue.Event{Node: before.Name})
	}
}

func (b *Binder) isStrict(node *corev1.Node) bool {
	return node != nil && b.strict.Matches(labels.Set(node.Labels))
}

// onStrictNode reports whether the watch of nodes shows a node as strict. The events that requeue pods come from the
// same watch, while the snapshot of a cycle may be older.
func (b *Binder) onStrictNode(name string) bool {
	node, err := b.Nodes.Get(name)
	return err == nil && b.isStrict(node)
}

// node returns a node of the scheduling cycle; nil if it does not exist.
func (b *Binder) node(name string) *corev1.Node {
	if info := b.snapshot(name); info != nil {
		return info.Node()
	}
	return nil
}

// podsOn returns the pods of a node of the scheduling cycle.
func (b *Binder) podsOn(name string) (pods []*corev1.Pod) {
	if info := b.snapshot(name); info != nil {
		for _, p := range info.GetPods() {
			pods = append(pods, p.GetPod())
		}
	}
	return pods
}

// remember adds a pod to a set if the watch shows the pod. If the pod is deleted later, Remove takes the pod out of the set.
func (s *Shared) remember(set *sync.Map, pod *corev1.Pod) {
	set.Store(pod.UID, true)
	if !s.exists(pod) {
		set.Delete(pod.UID)
	}
}

// exists reports whether the watch shows the pod.
func (s *Shared) exists(pod *corev1.Pod) bool {
	now, err := s.Pods.Pods(pod.Namespace).Get(pod.Name)
	return err == nil && now.UID == pod.UID
}

// Remove drops all state of a pod in the Binder. A claim of the pod stays in the ledger until Forget. If the pod is
// searching for a slot, Remove notifies the waiting pods of the workload: one more of them may search.
func (b *Binder) Remove(pod *corev1.Pod) {
	b.widenNext.Delete(pod.UID)
	b.widened.Delete(pod.UID)
	b.orphaned.Delete(pod.UID)
	if workload := b.slots.remove(pod.UID); workload != "" {
		b.Cache.Notify(requeue.Event{Keys: requeue.Keys(metrics.Slot, workload)})
	}
}

// A Binder is the Domain of the queue of waiting pods. The methods of Domain read the caches, never the snapshot of a
// cycle, because the goroutine of the queue calls them.
var _ requeue.Domain = &Binder{}

// CanRun reports whether the node exists, is not cordoned for the pod, and matches the pod's node selector and required node
// affinity. A free address requeues no pod that cannot run on the node of the address.
func (b *Binder) CanRun(pod *corev1.Pod, name string) bool {
	node, err := b.Nodes.Get(name)
	return err == nil && canRun(pod, node)
}

func canRun(pod *corev1.Pod, node *corev1.Node) bool {
	if isCordonedFor(pod, node) {
		return false
	}
	match, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
	return err == nil && match
}

// isCordonedFor reports whether a node is cordoned, unless the pod tolerates that. Kubernetes decides by the same taint.
func isCordonedFor(pod *corev1.Pod, node *corev1.Node) bool {
	return node.Spec.Unschedulable && !corev1helpers.TolerationsTolerateTaint(pod.Spec.Tolerations, &corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
}

// MayUseAfter reports whether a change of a node may allow a refused pod to run there. The queue of waiting pods offers no
// free address or slot of a node to a pod that cannot run on the node, so such a change has to requeue the pod.
func (b *Binder) MayUseAfter(pod *corev1.Pod, before, after *corev1.Node) bool {
	return !canRun(pod, before) && canRun(pod, after) && b.MayUse(pod, after.Name)
}

// HasFreeAddress reports whether the pod, which waits for wanted, can be placed on the node as far as addresses are
// concerned. If wanted.Carried is not empty, the node must be able to carry these addresses. Otherwise the node must
// have a free address in each family of the profile: one of wanted.Requested in the families in which the pod requests
// addresses. An unreserved pod needs no free address if the node is not strict.
func (b *Binder) HasFreeAddress(pod *corev1.Pod, wanted requeue.FreeAddress, name string) bool {
	if len(wanted.Carried) > 0 {
		return b.Cache.Ledger.Carries(name, pool.OwnerKey(pod.Namespace, pod.Name), wanted.Carried) == nil
	}
	return wanted.Strict && !b.onStrictNode(name) || b.Cache.Ledger.CanAllocate(name, b.families, wanted.Requested)
}

// FreeSlots counts the free slots of a workload and the pods that search for one, and returns the nodes of the slots that
// can be taken over now.
func (b *Binder) FreeSlots(workload string) (requeue.FreeSlots, error) {
	free, err := b.freeSlots(workload, "")
	if err != nil {
		return requeue.FreeSlots{}, err
	}
	found := requeue.FreeSlots{Count: len(free), Searching: b.slots.count(workload)}
	for _, f := range available(free) {
		found.Nodes = append(found.Nodes, f.node)
	}
	return found, nil
}

// MayUse reports whether a refused pod may use a node that was just created, or that has changed so that the pod can run
// there. Queueing hints call MayUse, because the framework calls hints after it has changed its own cache, while an event of
// the watch of nodes may come earlier.
func (b *Binder) MayUse(pod *corev1.Pod, node string) bool {
	id, fixed, err := identity.Of(pod, b.Cache.Kinds, b.Cache.Workloads.Controller)
	switch {
	case err != nil:
		// A new node neither corrects an invalid annotation nor makes a workload known.
		return false
	case !fixed:
		// The plugin refuses a node for an unreserved pod only in two cases: the pool has an entry for the name of the pod,
		// which the pod must not use (blockedNode), or the node is strict and has no free address. The new or changed node may
		// be in neither case.
		return true
	}
	r, err := b.reservationOf(context.Background(), id)
	switch {
	case err != nil:
		return false
	case r.lost != "":
		return true
	case r.node != "":
		return r.node == node || b.homeNodeIfMoved(id, r) == node
	}
	requested, err := b.requestOf(pod, id)
	switch {
	case err != nil:
	case len(requested.Families()) > 0 && slices.Contains(b.Cache.Ledger.NodesServing(requested.Addresses), node),
		b.Cache.Ledger.CanAllocate(node, b.families, requested.Addresses):
		return true
	}
	return id.Slot && b.hasSlots(id, node)
}

// hasSlots reports whether the workload has slots on the node, or FixedIPs of its namespace reserve addresses there.
func (b *Binder) hasSlots(id identity.Identity, node string) bool {
	n, _ := b.Cache.Ledger.Node(node)
	return slices.ContainsFunc(b.Cache.Ledger.Slots(id.Resource()), func(s ledger.Slot) bool { return s.Node == node }) ||
		slices.ContainsFunc(b.Cache.Ledger.ReservationsIn(n.Subnets...), func(r ledger.Reservation) bool {
			namespace, _, ok := pool.SplitOwnerKey(r.Owner)
			return ok && namespace == id.Namespace
		})
}
