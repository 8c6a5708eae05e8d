// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/core/conformance"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/nodeutil"
	"fixedip.io/fixedip/ipam/core/pool"
)

// verify compares one pod with its FixedIP, and writes the condition AsReserved or evicts the pod.
func (c *Controller) verify(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	s, err := c.observe(ctx, c.Cached, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, err
	}
	a := conformance.Decide(s)
	if a.Type != conformance.None {
		if s, err = c.observe(ctx, c.Live, req.NamespacedName); err != nil {
			return ctrl.Result{}, err
		}
		a = conformance.Decide(s)
	}
	var later time.Duration
	switch a.Type {
	case conformance.None:
		if conformance.IsConsistent(s) {
			c.evictionDone(client.ObjectKeyFromObject(s.FixedIP))
		}
	case conformance.SetCondition:
		err = c.setCondition(ctx, s, a.Condition)
	case conformance.EvictPod:
		later, err = c.evictMismatched(ctx, s, a.Condition)
	}
	if superseded(err) {
		klog.FromContext(ctx).V(3).Info("State changed since the decision; retrying", "action", a.Type, "err", err)
		return ctrl.Result{RequeueAfter: source.AfterConflict}, nil
	}
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("perform action %s for pod %s: %w", a.Type, req, err)
	}
	if later == 0 && !a.At.IsZero() {
		later = max(time.Second, a.At.Sub(c.Clock.Now()))
	}
	return ctrl.Result{RequeueAfter: min(later, source.ResyncPeriod)}, nil
}

// observe returns the state of a pod. It reads the pod, its FixedIP and the nodes with from: c.Cached or c.Live. The pool
// entries and the workload always come from caches. s.Pod is nil if no pod has to be compared with a FixedIP: the pod or the
// FixedIP does not exist, the pod has opted out, or the FixedIP is for another workload.
func (c *Controller) observe(ctx context.Context, from client.Reader, key client.ObjectKey) (s conformance.PodState, err error) {
	s = conformance.PodState{
		Held:  c.Ledger.Held(pool.OwnerKey(key.Namespace, key.Name)),
		Moved: c.Ledger.Moved(pool.OwnerKey(key.Namespace, key.Name)),
		Grace: conformance.GracePeriods{Address: c.Config.RestartAfter, Endpoint: c.Config.EndpointGracePeriod},
		Now:   c.Clock.Now(),
	}
	slots, isSlot := c.slotsOf(s.Held, key.Namespace)
	names := []string{key.Name}
	if isSlot {
		// The FixedIP of a slot is named after one of its IPs.
		names = nil
		for _, h := range s.Held {
			for _, a := range h.Addrs {
				names = append(names, identity.SlotName(slots.Name, a))
			}
		}
	}
	for _, name := range names {
		if s.FixedIP, err = index.Get[v1alpha1.FixedIP](ctx, from, client.ObjectKey{Namespace: key.Namespace, Name: name}); err != nil {
			return s, err
		}
		if s.FixedIP != nil {
			break
		}
	}
	if s.FixedIP == nil {
		return s, nil
	}
	pod, err := index.Get[corev1.Pod](ctx, from, key)
	if err != nil || pod == nil || identity.OptsOut(pod) || !reservedFor(s.FixedIP, pod, slots, isSlot) {
		return s, err
	}
	s.Pod, s.BarePod = pod, metav1.GetControllerOfNoCopy(pod) == nil
	workload, err := c.workload(identity.OwnerOf(s.FixedIP), pod.Namespace)
	if err != nil {
		return s, err
	}
	s.Policy = c.policy(pod, workload)
	live := from == client.Reader(c.Live)
	if _, ours := c.Adoption.Placed(pod, c.Kinds, identity.NoControllers); ours && !isSlot {
		s.Ours = true
		if s.Returns, err = feasibleNodes(ctx, from, pod, s.Held, live); err != nil {
			return s, err
		}
	}
	if c.Endpoints != nil {
		if s.EndpointMissing = c.Endpoints.Missing(pod); s.EndpointMissing && live {
			s.EndpointMissing, s.EndpointBlocker, err = c.Endpoints.Confirm(ctx, pod)
		}
	}
	return s, err
}

// setCondition writes the condition AsReserved and records an event on the FixedIP and, if the condition is False, on the pod.
func (c *Controller) setCondition(ctx context.Context, s conformance.PodState, want metav1.Condition) error {
	record := s.FixedIP.DeepCopy()
	want.ObservedGeneration = record.Generation
	conformance.SetAsReserved(&record.Status, want, s.Pod)
	// Update carries the resourceVersion that was read.
	if err := c.Live.Status().Update(ctx, record); err != nil {
		return fmt.Errorf("write condition %s of FixedIP %s/%s: %w", want.Type, record.Namespace, record.Name, err)
	}
	klog.FromContext(ctx).Info("Condition updated", "condition", want.Type, "status", want.Status, "reason", want.Reason, "message", want.Message)
	if want.Status == metav1.ConditionTrue {
		c.evictionDone(client.ObjectKeyFromObject(record))
		c.Events.Eventf(record, s.Pod, corev1.EventTypeNormal, want.Reason, "Verify", "%s", want.Message)
		return nil
	}
	if want.Reason != conformance.ReasonRestarting && want.Reason != conformance.ReasonRestartBlocked {
		metrics.Mismatches.WithLabelValues(want.Reason).Inc()
	}
	c.Events.Eventf(s.Pod, record, corev1.EventTypeWarning, want.Reason, "Verify", "%s", want.Message)
	c.Events.Eventf(record, s.Pod, corev1.EventTypeWarning, want.Reason, "Verify", "%s", want.Message)
	return nil
}

// evictMismatched evicts the pod and writes into the condition AsReserved that it was evicted, or that the eviction is blocked.
// If the limits do not allow the eviction now, it writes nothing. later is the time until the next try. The interval between
// two evictions applies to each FixedIP and not to each pod name, because the next holder of a slot has another name.
func (c *Controller) evictMismatched(ctx context.Context, s conformance.PodState, evicted metav1.Condition) (later time.Duration, err error) {
	later, err = c.evict(ctx, client.ObjectKeyFromObject(s.FixedIP), identity.OwnerOf(s.FixedIP), s.Pod)
	switch {
	case errors.Is(err, errBlocked):
		later, evicted.Reason = retryBlocked, conformance.ReasonRestartBlocked
		evicted.Message += "; the pod can't be evicted now: " + err.Error()
		have := meta.FindStatusCondition(s.FixedIP.Status.Conditions, evicted.Type)
		if have != nil && have.Reason == evicted.Reason && have.Message == evicted.Message {
			return later, nil
		}
	case err != nil || later > 0:
		return later, err
	default:
		evicted.Message += "; the pod was evicted; its controller creates the next pod"
	}
	return later, c.setCondition(ctx, s, evicted)
}

// slotsOf returns the workload of the slots to which the entries in held belong. ok is false if they do not belong to
// slots.
func (c *Controller) slotsOf(held []ledger.NodeAddresses, namespace string) (w identity.Workload, ok bool) {
	if len(held) == 0 {
		return w, false
	}
	label, name, named := c.Ledger.EntryOf(held[0]).WorkloadRef()
	kind, known := c.Kinds.Labelled(label)
	return identity.Workload{GroupKind: kind.GroupKind(), Namespace: namespace, Name: name}, named && known && kind.Identity == identity.Slot
}

// reservedFor reports whether a FixedIP is for the workload of a pod. slots and isSlot are the results of slotsOf.
func reservedFor(record *v1alpha1.FixedIP, pod *corev1.Pod, slots identity.Workload, isSlot bool) bool {
	owner := identity.Owner{Kind: identity.PodKind, Name: pod.Name}
	if o := metav1.GetControllerOfNoCopy(pod); o != nil {
		owner = identity.Owner{APIVersion: o.APIVersion, Kind: o.Kind, Name: o.Name}
	}
	of := owner.Resource(pod.Namespace)
	if isSlot && owner.GroupKind() == identity.ReplicaSets {
		// A ReplicaSet uses each pod name once, so that the pod with the name of the holder is the holder.
		of = slots.Resource()
	}
	return identity.OwnerOf(record).Resource(record.Namespace) == of
}

// feasibleNodes returns the nodes, except that of the pod, whose pools have entries for the pod and which can run the pod. If
// only the pools of other nodes have the reserved IPs and feasibleNodes returns none of these nodes, the next pod would stay
// Pending after an eviction.
//
// The caches have no tolerations, node selectors or affinity of bound pods. If live is false, feasibleNodes therefore ignores
// taints, and no node selector or affinity excludes a node. The result may then contain too many nodes, but never too few: with
// too few, verify would decide from the caches that nothing has to be done, and would not decide again from the API server.
func feasibleNodes(ctx context.Context, from client.Reader, pod *corev1.Pod, held []ledger.NodeAddresses, live bool) ([]string, error) {
	var nodes []string
	for _, h := range held {
		if h.Node == pod.Spec.NodeName {
			continue
		}
		node, err := index.Node(ctx, from, h.Node)
		if err != nil {
			return nil, fmt.Errorf("read node %s for pod %s/%s: %w", h.Node, pod.Namespace, pod.Name, err)
		}
		if node == nil || !nodeutil.IsSchedulable(node) {
			continue
		}
		_, tainted := schedulinghelpers.FindMatchingUntoleratedTaint(node.Spec.Taints, pod.Spec.Tolerations, func(t *corev1.Taint) bool {
			return live && (t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute)
		})
		match, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
		if err != nil {
			return nil, fmt.Errorf("match pod %s/%s with node %s: %w", pod.Namespace, pod.Name, node.Name, err)
		}
		if match && !tainted {
			nodes = append(nodes, h.Node)
		}
	}
	return nodes, nil
}
