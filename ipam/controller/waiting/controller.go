// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/nodeutil"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
)

const (
	// eventDelay is the time from the moment at which a pod was found unschedulable to the event. A drain evicts the pods of a
	// node one after the other, and one event should name them all. There is no delay for a pod that had a scheduling gate for
	// as long: see podutil.UnschedulableSince.
	eventDelay = 10 * time.Second
	// recheckInterval is the interval at which a node is reconciled while pods wait for it.
	recheckInterval = time.Minute
	// maxNames is the maximum number of pods that an event names.
	maxNames = 5
)

// Reason is the reason of the events about pods that wait for a node.
const Reason = "PodsWaitForNode"

// Controller is the controller "waiting". A request names a node.
type Controller struct {
	Ledger *ledger.Ledger
	Cached client.Reader
	Events events.EventRecorder
	Clock  clock.PassiveClock

	mu sync.Mutex
	// binds contains the bound pods that have no address yet.
	binds binds
	// reported contains the waiting pods that an event has named, or has counted in "and N more" (maxNames). Key: the node for
	// which they wait. Value: the keys of the pods (keyOf).
	reported map[string]sets.Set[string]
}

// Setup adds the controller to a manager.
func (c *Controller) Setup(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).
		Named("waiting").
		Watches(&corev1.Pod{}, bindHandler{EventHandler: handler.EnqueueRequestsFromMapFunc(c.requests), c: c}).
		WithOptions(source.Workers(1)).
		Complete(c)
	if err != nil {
		return fmt.Errorf("set up the controller of waiting pods: %w", err)
	}
	return nil
}

// requests returns the request for the node for which an unschedulable pod waits.
func (c *Controller) requests(ctx context.Context, obj client.Object) []ctrl.Request {
	pod := obj.(*corev1.Pod)
	if !podutil.IsUnschedulable(pod) {
		return nil
	}
	if node, err := c.nodeOf(ctx, pod); err == nil && node != "" {
		return []ctrl.Request{source.ForName(node)}
	}
	return nil
}

// Reconcile records an event on a Node that exists. The event names the pods that wait for the node, maxNames at most. The
// next event follows when another pod waits for the node.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	all, err := c.waiting(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	node, err := index.Node(ctx, c.Cached, req.Name)
	if err != nil {
		return ctrl.Result{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	pods := all[req.Name]
	if len(pods) == 0 || node == nil {
		delete(c.reported, req.Name)
		return ctrl.Result{}, nil
	}
	waiting, since := sets.New[string](), c.Clock.Now()
	var added, known []*corev1.Pod
	for _, pod := range pods {
		if waiting.Insert(keyOf(pod)); c.reported[req.Name].Has(keyOf(pod)) {
			known = append(known, pod)
			continue
		}
		added = append(added, pod)
		if at := podutil.UnschedulableSince(pod); at.Before(since) {
			since = at
		}
	}
	if left := since.Add(eventDelay).Sub(c.Clock.Now()); len(added) > 0 && left > 0 {
		return ctrl.Result{RequeueAfter: left}, nil
	}
	if c.reported == nil {
		c.reported = map[string]sets.Set[string]{}
	}
	c.reported[req.Name] = waiting
	if len(added) > 0 {
		// Events with the same reason on the same object are merged into one with the note of the first, unless their
		// related objects differ. So the first pod that no event has named is the related object.
		c.Events.Eventf(node, added[0], corev1.EventTypeWarning, Reason, "SchedulePods", "%s", describe(slices.Concat(added, known), node))
	}
	return ctrl.Result{RequeueAfter: recheckInterval}, nil
}

// describe returns the note of the event: the names of the pods, the state of the node, and the remedy.
func describe(pods []*corev1.Pod, node *corev1.Node) string {
	var first []string
	for _, pod := range pods[:min(maxNames, len(pods))] {
		first = append(first, keyOf(pod))
	}
	names := strings.Join(first, ", ")
	if more := len(pods) - maxNames; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	helps := "the events of the pods explain why the node cannot take them"
	switch state := nodeutil.State(node); {
	case state == nodeutil.Cordoned:
		helps = "the pods can run when the node is uncordoned, or when it is deleted and another node has its subnet; with the failover policy Migrate or Reassign a pod runs on another node"
	case state == nodeutil.NotReady:
		helps = "the pods can run when the node is ready, or when it is deleted and another node has its subnet; if the node is powered off, the taint node.kubernetes.io/out-of-service lets pods with the failover policy Migrate or Reassign run on another node"
	}
	return fmt.Sprintf("Pods wait for the node, which has their IPs and is %s: %s; %s", nodeutil.State(node), names, helps)
}

func keyOf(pod *corev1.Pod) string { return pool.OwnerKey(pod.Namespace, pod.Name) }

// waiting returns the unschedulable pods that wait for each node, sorted by namespace and name. Key: the node.
func (c *Controller) waiting(ctx context.Context) (map[string][]*corev1.Pod, error) {
	pods, err := index.UnschedulablePods(ctx, c.Cached)
	if err != nil {
		return nil, err
	}
	found := map[string][]*corev1.Pod{}
	for i := range pods {
		pod := &pods[i]
		node, err := c.nodeOf(ctx, pod)
		if err != nil {
			return nil, err
		}
		if node != "" && pod.DeletionTimestamp == nil {
			found[node] = append(found[node], pod)
		}
	}
	for _, waiting := range found {
		slices.SortFunc(waiting, func(a, b *corev1.Pod) int { return strings.Compare(keyOf(a), keyOf(b)) })
	}
	return found, nil
}

// held returns the addresses of the entries that pools have for a pod, sorted by node name, without those of Unreserved
// entries: an unreserved pod with an entry on a strict node has no fixed address, and another node can take it too.
func (c *Controller) held(pod *corev1.Pod) []ledger.NodeAddresses {
	unreserved := func(h ledger.NodeAddresses) bool { return c.Ledger.EntryOf(h).IsUnreserved() }
	return slices.DeleteFunc(c.Ledger.Held(keyOf(pod)), unreserved)
}

// nodeOf returns the node for which a pod waits: the first node of held or, if there is none, the node that its FixedIP names.
// It returns an empty string if the pod has neither such an entry nor a FixedIP, or no such entry and a FixedIP that is for a
// slot or is being deleted.
func (c *Controller) nodeOf(ctx context.Context, pod *corev1.Pod) (string, error) {
	if held := c.held(pod); len(held) > 0 {
		return held[0].Node, nil
	}
	record, err := index.Get[v1alpha1.FixedIP](ctx, c.Cached, client.ObjectKeyFromObject(pod))
	if err != nil || record == nil || record.Spec.AssignedTo == v1alpha1.Slot || record.DeletionTimestamp != nil {
		return "", err
	}
	return record.Spec.NodeName, nil
}

// Counts returns the number of pods that wait for each node, sorted by node.
func (c *Controller) Counts(ctx context.Context) ([]metrics.WaitingPods, error) {
	all, err := c.waiting(ctx)
	if err != nil {
		return nil, err
	}
	var counts []metrics.WaitingPods
	for _, name := range slices.Sorted(maps.Keys(all)) {
		node, err := index.Node(ctx, c.Cached, name)
		if err != nil {
			return nil, err
		}
		on := metrics.WaitingPods{Node: name, State: nodeutil.State(node), Pods: len(all[name])}
		for _, pod := range all[name] {
			if at := podutil.UnschedulableSince(pod); on.Since.IsZero() || at.Before(on.Since) {
				on.Since = at
			}
		}
		counts = append(counts, on)
	}
	return counts, nil
}
