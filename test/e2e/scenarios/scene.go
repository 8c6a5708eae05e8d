// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/core/reservation"
)

// scenario is a test of pods with fixed addresses on the cluster.
type scenario struct {
	name string
	// proves is the expectation that holds if the scenario passes.
	proves string
	run    func(context.Context, *scene) error
	needs  need
	// kills is true if the scenario may also run while our programs are killed; see killMode.
	kills bool
	// tunnel is true if the scenario moves an address to a node other than its home node. Native routing has no route to such
	// an address.
	tunnel bool
}

// scene is the environment of a scenario: a namespace on the cluster of the trial.
type scene struct {
	*trial
	namespace string
	// cordoned are the nodes that the scenario cordoned.
	cordoned []string
	// note is a remark for the report.
	note string
}

// stepTimeout is the maximum time of one step without progress. The slowest step waits for an agent that reports every 15 s,
// on a busy machine; a rollout has one such step for each pod.
const stepTimeout = 3 * time.Minute

// eventually calls try until it returns nil. It returns the last error when ctx ends or when there is no progress for the
// time stepTimeout. An error that differs from all earlier errors counts as progress. Because an error may contain a number
// that always changes, eventually gives up after ten times stepTimeout in any case.
func eventually(ctx context.Context, try func() error) error { return within(ctx, stepTimeout, try) }

// within is eventually with another time limit.
func within(ctx context.Context, timeout time.Duration, try func() error) error {
	// seen are the errors so far. Key: the text.
	seen := map[string]bool{}
	limit := time.NewTimer(timeout)
	defer limit.Stop()
	end := time.NewTimer(10 * timeout)
	defer end.Stop()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		err := try()
		if err == nil {
			return nil
		}
		if !seen[err.Error()] {
			seen[err.Error()] = true
			limit.Reset(timeout)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("stopped waiting: %w; last error: %w", context.Cause(ctx), err)
		case <-limit.C:
			return fmt.Errorf("no success, and no progress for %s: %w", timeout, err)
		case <-end.C:
			return fmt.Errorf("no success within %s, although there was progress: %w", 10*timeout, err)
		case <-tick.C:
		}
	}
}

func (s *scene) open(ctx context.Context) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}}
	if err := s.api.Create(ctx, ns); err != nil {
		return fmt.Errorf("create the namespace %s: %w", s.namespace, err)
	}
	return nil
}

// close uncordons the nodes and deletes the namespace. It returns when the namespace does not exist, so that the next scenario
// finds free addresses.
func (s *scene) close(ctx context.Context) error {
	// Uncordon the nodes, even if the scenario failed.
	for _, name := range s.cordoned {
		if err := s.uncordon(ctx, name); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}}
	if err := client.IgnoreNotFound(s.api.Delete(ctx, ns)); err != nil {
		return fmt.Errorf("delete the namespace %s: %w", s.namespace, err)
	}
	return eventually(ctx, func() error {
		err := s.api.Get(ctx, client.ObjectKey{Name: s.namespace}, ns)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("check whether the namespace %s still exists: %w", s.namespace, err)
		}
		return fmt.Errorf("the namespace %s still exists: %v", s.namespace, ns.Status.Conditions)
	})
}

func (s *scene) create(ctx context.Context, obj client.Object) error {
	if err := s.api.Create(ctx, obj); err != nil {
		return fmt.Errorf("create %T %s/%s: %w", obj, obj.GetNamespace(), obj.GetName(), err)
	}
	return nil
}

// remove deletes an object and returns when the object does not exist.
func (s *scene) remove(ctx context.Context, obj client.Object, options ...client.DeleteOption) error {
	if err := client.IgnoreNotFound(s.api.Delete(ctx, obj, options...)); err != nil {
		return fmt.Errorf("delete %T %s: %w", obj, obj.GetName(), err)
	}
	return eventually(ctx, func() error {
		err := s.api.Get(ctx, client.ObjectKeyFromObject(obj), obj)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("check whether %T %s still exists: %w", obj, obj.GetName(), err)
		}
		return fmt.Errorf("%T %s still exists", obj, obj.GetName())
	})
}

// change updates an object. It retries after errors, such as conflicts, until there is no progress for a minute (see
// within).
func change[T client.Object](ctx context.Context, s *scene, obj T, f func(T)) error {
	err := within(ctx, time.Minute, func() error {
		if err := s.api.Get(ctx, client.ObjectKeyFromObject(obj), obj); err != nil {
			return err
		}
		f(obj)
		return s.api.Update(ctx, obj)
	})
	if err != nil {
		return fmt.Errorf("change %T %s: %w", obj, obj.GetName(), err)
	}
	return nil
}

func (s *scene) scale(ctx context.Context, name string, replicas int32) error {
	return change(ctx, s, &appsv1.StatefulSet{ObjectMeta: s.meta(name)}, func(o *appsv1.StatefulSet) { o.Spec.Replicas = &replicas })
}

// deletePods deletes pods, gracefully or by force, without waiting.
func (s *scene) deletePods(ctx context.Context, force bool, names ...string) error {
	var options []client.DeleteOption
	if force {
		options = append(options, client.GracePeriodSeconds(0))
	}
	for _, name := range names {
		if err := s.api.Delete(ctx, &corev1.Pod{ObjectMeta: s.meta(name)}, options...); err != nil {
			return fmt.Errorf("delete pod %s: %w", name, err)
		}
	}
	return nil
}

// evict evicts a pod like kubectl drain.
func (s *scene) evict(ctx context.Context, name string) error {
	pod := &corev1.Pod{ObjectMeta: s.meta(name)}
	if err := s.api.SubResource("eviction").Create(ctx, pod, &policyv1.Eviction{ObjectMeta: s.meta(name)}); err != nil {
		return fmt.Errorf("evict pod %s: %w", name, err)
	}
	return nil
}

func (s *scene) cordon(ctx context.Context, node string) error {
	s.cordoned = append(s.cordoned, node)
	return s.setCordon(ctx, node, true)
}

func (t *trial) uncordon(ctx context.Context, node string) error {
	return t.setCordon(ctx, node, false)
}

func (t *trial) setCordon(ctx context.Context, node string, on bool) error {
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, on))
	err := t.api.Patch(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, patch)
	if err != nil {
		return fmt.Errorf("set spec.unschedulable of node %s to %t: %w", node, on, err)
	}
	return nil
}

// label sets a label of a node; an empty value removes it.
func (t *trial) label(ctx context.Context, node, key, value string) error {
	text := "null"
	if value != "" {
		text = fmt.Sprintf("%q", value)
	}
	patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`, key, text))
	if err := t.api.Patch(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, patch); err != nil {
		return fmt.Errorf("label node %s: %w", node, err)
	}
	return nil
}

// nodeReady returns when the condition Ready of a Node is true, or not true if want is false.
func (t *trial) nodeReady(ctx context.Context, name string, want bool) error {
	return eventually(ctx, func() error {
		var node corev1.Node
		if err := t.api.Get(ctx, client.ObjectKey{Name: name}, &node); err != nil {
			return err
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady && (c.Status == corev1.ConditionTrue) == want {
				return nil
			}
		}
		return fmt.Errorf("node %s: the condition Ready is not %t yet", name, want)
	})
}

// waiting returns when a pod is unschedulable. It returns the message of the scheduler.
func (s *scene) waiting(ctx context.Context, name string) (string, error) {
	var message string
	err := eventually(ctx, func() error {
		pod := s.witness.Pod(s.namespace, name)
		if pod == nil || pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil {
			return fmt.Errorf("pod %s does not exist, is bound or is being deleted, want it to be unschedulable", name)
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
				message = c.Message
				return nil
			}
		}
		return fmt.Errorf("pod %s does not have the condition PodScheduled with the status False yet", name)
	})
	return message, err
}

// nodeEvent returns when a Node has an event with this reason whose message contains text.
func (s *scene) nodeEvent(ctx context.Context, node, reason, text string) error {
	return eventually(ctx, func() error {
		var list corev1.EventList
		if err := s.api.List(ctx, &list, client.InNamespace(metav1.NamespaceDefault)); err != nil {
			return err
		}
		if !slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
			return e.InvolvedObject.Kind == "Node" && e.InvolvedObject.Name == node && e.Reason == reason && strings.Contains(e.Message, text)
		}) {
			return fmt.Errorf("node %s has no event %s with the text %q", node, reason, text)
		}
		return nil
	})
}

// noFixedIP returns when the named pods have no FixedIP and no pool entry.
func (s *scene) noFixedIP(ctx context.Context, names ...string) error {
	return eventually(ctx, func() error {
		for _, name := range names {
			if r := s.witness.Record(s.namespace, name); r != nil {
				return fmt.Errorf("FixedIP %s still exists in the state %q", name, reservation.StateOf(r))
			}
			if e := s.witness.Entries(s.namespace, name); len(e) > 0 {
				return fmt.Errorf("the pools still have the entries %v for pod %s", e, name)
			}
		}
		return nil
	})
}

// reserved returns when the FixedIP with this name is in the state Reserved with these addresses.
func (s *scene) reserved(ctx context.Context, name string, addresses []string) error {
	return eventually(ctx, func() error {
		r := s.witness.Record(s.namespace, name)
		if r == nil {
			return fmt.Errorf("FixedIP %s does not exist, want state Reserved and IPs %v", name, addresses)
		}
		if reservation.StateOf(r) != reservation.Reserved || !same(r.Spec.IPs, addresses) {
			return fmt.Errorf("FixedIP %s has state %q and IPs %v, want state Reserved and IPs %v", name, reservation.StateOf(r), r.Spec.IPs, addresses)
		}
		return nil
	})
}

func (s *scene) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: s.namespace, Name: name}
}

func isReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
