// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package inuse

import (
	"context"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/nodeutil"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/plugins/fixedip/cache"
	"fixedip.io/fixedip/plugins/fixedip/requeue"
)

// Subject is a pod and the addresses that it is to have.
type Subject struct {
	// Owner is the pod as pool entries name it.
	Owner string
	UID   types.UID
	// Created is when the pod was created: the former pod of its name was gone then.
	Created time.Time
	// Node is where the addresses are.
	Node  string
	Addrs []netip.Addr
}

// Verdict says why addresses may be in use. The zero Verdict: they are provably free.
type Verdict struct {
	// Reason is for people; empty: the addresses are free.
	Reason string
	// Until is when they are free at the latest; zero: no time is known.
	Until time.Time
	// WakeOn is what may change the verdict.
	WakeOn requeue.WakeOn
}

// Judge answers whether addresses are free of other pods. The profiles of a scheduler share one.
type Judge struct {
	cache  *cache.Cache
	client kubernetes.Interface
	nodes  corelisters.NodeLister
	pods   corelisters.PodLister
	// timeout is how long an agent takes to report.
	timeout      time.Duration
	predecessors *predecessorUsage
	terminated   terminatedPods
	reader       *liveReader
}

// New returns a Judge that works until ctx ends.
func New(ctx context.Context, c *cache.Cache, client kubernetes.Interface, shared informers.SharedInformerFactory, timeout time.Duration) (*Judge, error) {
	pods := shared.Core().V1().Pods()
	j := newJudge(c, client, shared.Core().V1().Nodes().Lister(), pods.Lister(), timeout)
	j.reader = newLiveReader(ctx, c.Pools.Read)
	if err := j.followNodes(shared.Core().V1().Nodes().Informer()); err != nil {
		return nil, err
	}
	if _, err := pods.Informer().AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		UpdateFunc: func(before, after any) {
			if b, pod := before.(*corev1.Pod), after.(*corev1.Pod); pod.Spec.NodeName != "" || pod.UID != b.UID {
				j.predecessors.forget(b.UID)
			}
		},
		DeleteFunc: func(obj any) {
			pod, _ := requeue.Deleted[*corev1.Pod](obj)
			j.predecessors.forget(pod.UID)
		},
	}); err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	if c.Kinds.Slots() {
		return j, j.followHolders(ctx, pods.Informer())
	}
	return j, nil
}

func newJudge(c *cache.Cache, client kubernetes.Interface, nodes corelisters.NodeLister, pods corelisters.PodLister, timeout time.Duration) *Judge {
	return &Judge{cache: c, client: client, nodes: nodes, pods: pods, timeout: timeout,
		predecessors: newPredecessorUsage(timeout, pods), terminated: terminatedPods{timeout: timeout}}
}

// Wait returns when the Judge has stopped. Call it after the context of New has ended.
func (j *Judge) Wait() { j.reader.wait() }

// followNodes makes events of nodes that are gone, or that say otherwise about the pods that were deleted from them.
// The queueing hints of the framework do not help: it asks none for a node that would not admit the pod.
func (j *Judge) followNodes(nodes toolscache.SharedIndexInformer) error {
	_, err := nodes.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		UpdateFunc: func(before, after any) {
			if a, b := before.(*corev1.Node), after.(*corev1.Node); fenceOf(a) != fenceOf(b) {
				j.cache.Notify(requeue.Event{Node: b.Name})
			}
		},
		DeleteFunc: func(obj any) {
			node, _ := requeue.Deleted[*corev1.Node](obj)
			j.cache.Notify(requeue.Event{Node: node.Name})
		},
	})
	if err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	return nil
}

// followHolders tracks how the pods of workloads with slots go.
func (j *Judge) followHolders(ctx context.Context, pods toolscache.SharedIndexInformer) error {
	registration, err := pods.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if pod := obj.(*corev1.Pod); j.mayHoldSlot(pod) {
				j.terminated.added(pod)
			}
		},
		DeleteFunc: func(obj any) {
			if pod, missed := requeue.Deleted[*corev1.Pod](obj); j.mayHoldSlot(pod) {
				j.terminated.deleted(pod, missed, time.Now())
				j.slotLeft(pod)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	// A watch that begins with a new list does not show the pods that came and went before it. The version is that of
	// the watch until the list is complete.
	var gap atomic.Pointer[string]
	err = pods.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *toolscache.Reflector, err error) {
		toolscache.DefaultWatchErrorHandler(ctx, r, err)
		version := pods.LastSyncResourceVersion()
		gap.CompareAndSwap(nil, &version)
	})
	if err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	j.terminated.incomplete = func() bool {
		if j.terminated.complete.IsZero() {
			return true
		}
		version := gap.Load()
		if version == nil || *version == pods.LastSyncResourceVersion() {
			return version != nil
		}
		gap.CompareAndSwap(version, nil)
		j.terminated.complete = time.Now()
		return false
	}
	go func() {
		if toolscache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
			j.terminated.completeAt(time.Now())
		}
	}()
	return nil
}

// mayHoldSlot reports whether the pod's workload may be one with slots.
func (j *Judge) mayHoldSlot(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return false
	}
	gk := identity.Owner{APIVersion: owner.APIVersion, Kind: owner.Kind}.GroupKind()
	kind, known := j.cache.Kinds.Of(gk)
	return gk == identity.ReplicaSets || known && kind.Identity == identity.Slot
}

// slotLeft makes an event of the slots whose pod is gone. What the agent lists at this moment proves something once
// it does not list it any more.
func (j *Judge) slotLeft(pod *corev1.Pod) {
	owner := pool.OwnerKey(pod.Namespace, pod.Name)
	for _, h := range j.cache.Ledger.Held(owner) {
		j.FormerUntil(owner, h.Node, h.Addrs, nil)
		j.cache.Notify(requeue.Event{Slots: []string{j.cache.Ledger.EntryOf(h).Workload}})
	}
}

// Lives reports whether a pod exists, and whether it is being deleted. Pods that have ended do not exist: the
// scheduler's watch leaves them out.
func (j *Judge) Lives(owner string) (lives, leaves bool) {
	namespace, name, ok := pool.SplitOwnerKey(owner)
	if !ok {
		return true, false
	}
	pod, err := j.pods.Pods(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return false, j.terminated.lives(owner)
	}
	return err != nil || pod.DeletionTimestamp == nil, err == nil && pod.DeletionTimestamp != nil
}

// FormerUntil returns when it is certain that a pod that is gone does not run with any of the addresses on the node;
// zero: it is certain now. recorded is what the controller says about its end; nil: nothing. If the cache shows that
// the agent still lists an address, the API server is asked.
func (j *Judge) FormerUntil(owner, node string, addrs []netip.Addr, recorded *v1alpha1.Departure) time.Time {
	at, unlisted := j.terminated.until(owner, node, addrs, recorded, time.Now())
	if n, ok := j.cache.Ledger.Node(node); ok && slices.ContainsFunc(unlisted, n.InUse) {
		j.reader.ask(node, owner, func(n pool.Node) {
			if !j.terminated.note(owner, n, unlisted, recorded, time.Now()) {
				return
			}
			for _, a := range unlisted {
				if e := n.Entries[a]; e.Owner == owner {
					j.cache.Notify(requeue.Event{Slots: []string{e.Workload}})
					return
				}
			}
			j.cache.Notify(requeue.Event{Node: n.Name})
		})
	}
	return at
}

// FormerGone returns an error unless the API server says that the former pod of a slot is gone or has ended: another
// scheduler may have claimed the slot for a pod that the watch does not show yet.
func (j *Judge) FormerGone(ctx context.Context, owner string) error {
	namespace, name, ok := pool.SplitOwnerKey(owner)
	if !ok {
		return fmt.Errorf("%q is no pod", owner)
	}
	pod, err := j.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("read pod %s, which had the address before: %w", owner, err)
	case podutil.IsTerminal(pod):
		return nil
	}
	return fmt.Errorf("pod %s exists and has the address: %w", owner, pool.ErrTaken)
}

// ByOthers says why another pod may use the addresses that the pool of the node gives to the pod. pods are those that
// the scheduler knows on the node.
//
// An agent that has not seen an entry may assign its address to any pod when the former owner has gone. Once it has
// seen the entry it gives the address to the owner, whether or not another pod uses it. So the pod waits until no
// other pod has the address, and the agent is known to have seen the entry, or would have reported who has it.
func (j *Judge) ByOthers(s Subject, pods iter.Seq[*corev1.Pod]) Verdict {
	texts := make([]string, 0, 2)
	for _, a := range s.Addrs {
		texts = append(texts, a.String())
	}
	wake := requeue.WakeOn{Owner: s.Owner}
	for o := range pods {
		if len(o.Status.PodIPs) > 0 && !hasAny(o, texts) || o.Spec.HostNetwork || o.UID == s.UID {
			continue
		}
		// The scheduler's snapshot may be behind the event that woke the pod.
		now, err := j.pods.Pods(o.Namespace).Get(o.Name)
		if err != nil || now.UID == s.UID || podutil.IsTerminal(now) || !hasAny(now, texts) {
			continue
		}
		wake.Occupants = append(wake.Occupants, now)
		return Verdict{Reason: fmt.Sprintf("IP %s on node %s is still in use by %s, to which an agent assigned it before it had seen the reservation; the pod is placed when that pod is gone",
			first(now, texts), s.Node, pool.RedactOwner(pool.OwnerKey(now.Namespace, now.Name), s.Owner)), WakeOn: wake}
	}
	n, _ := j.cache.Ledger.Node(s.Node)
	wake.Nodes = []string{s.Node}
	for _, a := range s.Addrs {
		if user := n.Used[a]; user != "" && user != s.Owner {
			return Verdict{Reason: fmt.Sprintf("the agent of node %s lists IP %s as used by %s; the pod is placed when that has ended", s.Node, a, pool.RedactOwner(user, s.Owner)), WakeOn: wake}
		}
	}
	v := j.Unacknowledged(s)
	if v.Reason != "" {
		v.WakeOn = wake.Merge(v.WakeOn)
	}
	return v
}

// Unacknowledged says why the agent may not know yet that the addresses are the pod's.
//
// An agent sees an entry within the timeout, and reports within the timeout again to whom it assigned the address
// meanwhile. Both times begin again when its node becomes ready. An entry without a time was written by a person: the
// former pod of the name had it already.
func (j *Judge) Unacknowledged(s Subject) Verdict {
	since, unheard := j.cache.Ledger.Unheard(s.Node, s.Addrs)
	if !unheard {
		return Verdict{}
	}
	at := s.Created.Add(j.timeout)
	if !since.IsZero() {
		if node, err := j.nodes.Get(s.Node); err == nil {
			if ready, ok := nodeutil.ReadySince(node); ok && ready.After(since) {
				since = ready
			}
		}
		at = since.Add(2 * j.timeout)
	}
	if !time.Now().Before(at) {
		return Verdict{}
	}
	return Verdict{
		Reason: fmt.Sprintf("waiting for the Cilium agent on node %s to acknowledge IP %s (at most until %s)", s.Node, address.Join(s.Addrs), at.UTC().Format(time.RFC3339)),
		Until:  at, WakeOn: requeue.WakeOn{Nodes: []string{s.Node}, At: at},
	}
}

// hasAny reports whether the pod's status has one of the addresses.
func hasAny(pod *corev1.Pod, addrs []string) bool { return first(pod, addrs) != "" }

func first(pod *corev1.Pod, addrs []string) string {
	for _, ip := range pod.Status.PodIPs {
		if slices.Contains(addrs, ip.IP) {
			return ip.IP
		}
	}
	return ""
}
