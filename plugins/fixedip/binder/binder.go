// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/nodeutil"
	"fixedip.io/fixedip/ipam/store/watch"
	"fixedip.io/fixedip/plugins/apis/config"
	"fixedip.io/fixedip/plugins/fixedip/cache"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
	"fixedip.io/fixedip/plugins/fixedip/requeue"
)

// ErrNotReady is the error of Find while the cache is not complete. Nothing is decided from a part of the cluster.
var ErrNotReady = errors.New("not all CiliumNodes and FixedIPs have been listed since the scheduler started; check that their CRDs are installed, and that the scheduler may list and watch them")

// Refusal is an error that says why a pod cannot be placed, and what may help it.
type Refusal struct {
	// Reason is shown in the pod's events.
	Reason string
	WakeOn requeue.WakeOn
}

func (r *Refusal) Error() string { return r.Reason }

// refuse returns a Refusal with a formatted reason.
func refuse(on requeue.WakeOn, format string, args ...any) *Refusal {
	return &Refusal{Reason: fmt.Sprintf(format, args...), WakeOn: on}
}

// Shared is what the profiles of a scheduler have in common.
type Shared struct {
	Cache *cache.Cache
	// Client reads and writes pods.
	Client kubernetes.Interface
	Nodes  corelisters.NodeLister
	Pods   corelisters.PodLister

	slots slotWaiters
}

// Binder decides for the pods of one profile.
type Binder struct {
	*Shared
	// snapshot returns a node of the scheduling cycle; nil if it does not exist. Only Find, Assume and Explain, which the
	// scheduler calls one after the other, may use it.
	snapshot     func(node string) fwk.NodeInfo
	families     []address.Family
	claimTimeout time.Duration
	// failover is the policy for workloads without one of their own.
	failover v1alpha1.Failover
	// movable: an address may live on another node than its home.
	movable bool
	// strict selects the nodes whose pools have entries with an owner only: every pod on them needs a claim.
	// strictNodes is how many there are.
	strict      labels.Selector
	strictNodes atomic.Int64
	// widenNext are the pods whose next plan has all nodes. widened are those that had such a plan, and so may have
	// preempted others on another node: a nominated node that another program wrote is no reason to leave the pod's own
	// node. Key: the UID of a pod that the watch shows.
	widenNext, widened sync.Map
}

// New returns the Binder of a profile.
func New(shared *Shared, args *config.FixedIPArgs, snapshot func(node string) fwk.NodeInfo, f informers.SharedInformerFactory) (*Binder, error) {
	b := &Binder{
		Shared: shared, snapshot: snapshot, strict: labels.Nothing(),
		claimTimeout: args.ClaimTimeout.Duration, failover: v1alpha1.Failover(args.Failover), movable: args.AllowAddressMigration,
	}
	for _, name := range args.IPFamilies {
		family, err := address.ParseFamily(name)
		if err != nil {
			return nil, fmt.Errorf("ipFamilies: %w", err)
		}
		b.families = append(b.families, family)
	}
	if args.StrictNodes != nil && *args.StrictNodes != "" {
		var err error
		if b.strict, err = identity.ParseLabels(*args.StrictNodes); err != nil {
			return nil, fmt.Errorf("strictNodes: %w", err)
		}
	}
	// The queueing hints of the framework do not help: it asks none for a node that would not admit the pod.
	if _, err := f.Core().V1().Nodes().Informer().AddEventHandler(watch.Handler(b.nodeChanged)); err != nil {
		return nil, fmt.Errorf("watch nodes: %w", err)
	}
	if _, err := f.Core().V1().Pods().Informer().AddEventHandler(watch.Handler(func(before, after *corev1.Pod) {
		if after == nil {
			b.Remove(before)
		}
	})); err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	return b, nil
}

// nodeChanged makes events of nodes whose state changes, and of nodes that are not strict any more: pods that waited for
// room there need none. A node that is created or deleted has no before or after.
func (b *Binder) nodeChanged(before, after *corev1.Node) {
	was, is := b.isStrict(before), b.isStrict(after)
	switch {
	case is && !was:
		b.strictNodes.Add(1)
	case was && !is:
		b.strictNodes.Add(-1)
		b.Cache.Notify(requeue.Event{Node: before.Name, Freed: requeue.AllRoom})
	}
	if before != nil && (after == nil || isDown(before) != isDown(after) || nodeutil.IsReady(before) != nodeutil.IsReady(after)) {
		b.Cache.Notify(requeue.Event{Node: before.Name})
	}
}

func (b *Binder) isStrict(node *corev1.Node) bool {
	return node != nil && b.strict.Matches(labels.Set(node.Labels))
}

// onStrictNode reports whether a node is strict, as the watch of nodes shows it: the same view that wakes pods, while the
// snapshot of a cycle may be behind.
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

// remember adds a pod that the watch shows to a set. If the pod is deleted later, Remove follows.
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

// Remove drops all that is remembered of a pod.
func (b *Binder) Remove(pod *corev1.Pod) {
	b.widenNext.Delete(pod.UID)
	b.widened.Delete(pod.UID)
	if workload := b.slots.remove(pod.UID); workload != "" {
		b.Cache.Notify(requeue.Event{Keys: requeue.Keys(metrics.Slot, workload)})
	}
}

// slotWaiters are the pods that search for a free slot of their workload and have none yet. The zero value is ready.
type slotWaiters struct {
	mu sync.Mutex
	// workloads are the workloads of the pods, named as in pool entries. Key: the UID of a pod that the watch shows, from
	// the cycle that told it to search until an address is decided for it.
	workloads map[types.UID]string
}

// search reports whether a pod searches for one of so many free slots: unless as many other pods do. exists reports
// whether the watch shows the pod: it is asked under the lock, so that remove follows if it is deleted.
func (s *slotWaiters) search(workload string, uid types.UID, free int, exists func() bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.workloads, uid)
	if s.searching(workload) >= free || !exists() {
		return false
	}
	if s.workloads == nil {
		s.workloads = map[types.UID]string{}
	}
	s.workloads[uid] = workload
	return true
}

// count returns how many pods search for a slot of the workload.
func (s *slotWaiters) count(workload string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.searching(workload)
}

// searching is count under mu.
func (s *slotWaiters) searching(workload string) (n int) {
	for _, w := range s.workloads {
		if w == workload {
			n++
		}
	}
	return n
}

// remove removes a pod, and returns the workload for whose slot it has searched; empty if it has not.
func (s *slotWaiters) remove(uid types.UID) (workload string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	workload = s.workloads[uid]
	delete(s.workloads, uid)
	return workload
}
