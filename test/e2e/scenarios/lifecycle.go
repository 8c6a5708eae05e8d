// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/witness"
)

// Scenarios about the life cycle of pods and workloads on healthy nodes.

// placed creates a StatefulSet and returns when its pods are whole (see whole).
func (s *scene) placed(ctx context.Context, w workload) (identities, error) {
	if err := s.create(ctx, s.statefulSet(w)); err != nil {
		return nil, err
	}
	return s.awaitSet(ctx, w.name, int(w.replicas))
}

// placedOn creates a StatefulSet whose first pods run on one node, and returns when they are whole (see whole). Pods
// that replace them may run on all nodes of w.
func (s *scene) placedOn(ctx context.Context, node string, w workload) (identities, error) {
	first := w
	first.nodes = []string{node}
	set := s.statefulSet(first)
	set.Spec.UpdateStrategy.Type = appsv1.OnDeleteStatefulSetStrategyType
	if err := s.create(ctx, set); err != nil {
		return nil, err
	}
	before, err := s.awaitSet(ctx, w.name, int(w.replicas))
	if err != nil {
		return nil, err
	}
	return before, change(ctx, s, set, func(o *appsv1.StatefulSet) { o.Spec.Template = w.template() })
}

func firstPlacement(ctx context.Context, s *scene) error {
	pods, err := s.placed(ctx, workload{name: "web", replicas: 4})
	if err != nil {
		return err
	}
	nodes, addresses := map[string]bool{}, map[string]bool{}
	for _, i := range pods {
		nodes[i.node] = true
		for _, a := range i.addresses {
			addresses[a] = true
		}
	}
	if len(nodes) != 2 || len(addresses) != 8 {
		return fmt.Errorf("got 4 pods on %d nodes with %d addresses, want 2 nodes and 8 addresses: %v", len(nodes), len(addresses), pods)
	}
	return nil
}

func podDeleted(ctx context.Context, s *scene) error { return deleted(ctx, s, false) }

func podForceDeleted(ctx context.Context, s *scene) error { return deleted(ctx, s, true) }

func deleted(ctx context.Context, s *scene, force bool) error {
	before, err := s.placed(ctx, workload{name: "web", replicas: 3})
	if err != nil {
		return err
	}
	if err := s.deletePods(ctx, force, "web-1"); err != nil {
		return err
	}
	if before, err = s.awaitReplaced(ctx, before, "web-1"); err != nil {
		return err
	}
	// Delete all pods at once, so that their waits run in parallel.
	if err := s.deletePods(ctx, force, before.names()...); err != nil {
		return err
	}
	_, err = s.awaitReplaced(ctx, before, before.names()...)
	return err
}

func rollingUpdate(ctx context.Context, s *scene) error {
	before, err := s.placed(ctx, workload{name: "web", replicas: 3})
	if err != nil {
		return err
	}
	if err := change(ctx, s, &appsv1.StatefulSet{ObjectMeta: s.meta("web")}, func(o *appsv1.StatefulSet) {
		o.Spec.Template.Annotations = map[string]string{"revision": "2"}
	}); err != nil {
		return err
	}
	_, err = s.awaitReplaced(ctx, before, before.names()...)
	return err
}

func scaledDownAndUp(ctx context.Context, s *scene) error {
	before, err := s.placed(ctx, workload{name: "web", replicas: 3})
	if err != nil {
		return err
	}
	if err := s.scale(ctx, "web", 1); err != nil {
		return err
	}
	for _, name := range []string{"web-1", "web-2"} {
		if err := s.reserved(ctx, name, before[name].addresses); err != nil {
			return err
		}
	}
	if err := s.scale(ctx, "web", 3); err != nil {
		return err
	}
	_, err = s.awaitReplaced(ctx, before, "web-1", "web-2")
	return err
}

func recreatedWithinTTL(ctx context.Context, s *scene) error {
	w := workload{name: "web", replicas: 2, annotations: map[string]string{"fixedip.io/retention-ttl": "30m"}}
	before, err := s.placed(ctx, w)
	if err != nil {
		return err
	}
	if err := s.removeSet(ctx, "web"); err != nil {
		return err
	}
	for name, i := range before {
		if err := s.reserved(ctx, name, i.addresses); err != nil {
			return err
		}
	}
	if err := s.create(ctx, s.statefulSet(w)); err != nil {
		return err
	}
	_, err = s.awaitReplaced(ctx, before, before.names()...)
	return err
}

func recreatedAfterTTL(ctx context.Context, s *scene) error {
	w := workload{name: "web", replicas: 2, annotations: map[string]string{"fixedip.io/retention-ttl": "2s"}}
	before, err := s.placed(ctx, w)
	if err != nil {
		return err
	}
	if err := s.removeSet(ctx, "web"); err != nil {
		return err
	}
	if err := s.noFixedIP(ctx, before.names()...); err != nil {
		return err
	}
	if err := s.create(ctx, s.statefulSet(w)); err != nil {
		return err
	}
	_, err = s.awaitSet(ctx, "web", 2)
	return err
}

// removeSet deletes a StatefulSet and returns when the StatefulSet and its pods do not exist.
func (s *scene) removeSet(ctx context.Context, name string) error {
	return s.remove(ctx, &appsv1.StatefulSet{ObjectMeta: s.meta(name)}, client.PropagationPolicy("Foreground"))
}

// sandboxKilled kills the process that keeps the namespaces of a pod. The kubelet keeps the pod and restarts its containers
// in a new sandbox.
func sandboxKilled(ctx context.Context, s *scene) error {
	before, err := s.placed(ctx, workload{name: "web", replicas: 2})
	if err != nil {
		return err
	}
	victim := before["web-0"]
	box, err := s.wire.sandboxOf(victim.node, victim.uid)
	if err != nil {
		return err
	}
	if err := s.killTask(ctx, s.cluster.Node(victim.node), box.id); err != nil {
		return err
	}
	if err := eventually(ctx, func() error {
		now, err := s.wire.sandboxOf(victim.node, victim.uid)
		if err == nil && now.id == box.id {
			err = errors.New("pod web-0 has no new sandbox")
		}
		return err
	}); err != nil {
		return err
	}
	_, err = s.awaitReplaced(ctx, before)
	return err
}

func stickyMAC(ctx context.Context, s *scene) error {
	before, err := s.placed(ctx, workload{name: "web", replicas: 2, podAnnotations: map[string]string{"fixedip.io/sticky-mac": "true"}})
	if err != nil {
		return err
	}
	for range 2 {
		if err := s.deletePods(ctx, false, before.names()...); err != nil {
			return err
		}
		after, err := s.awaitReplaced(ctx, before, before.names()...)
		if err != nil {
			return err
		}
		for name, i := range after {
			if i.mac != before[name].mac {
				return fmt.Errorf("the interface of pod %s has the MAC address %s, want %s", name, i.mac, before[name].mac)
			}
		}
		before = after
	}
	s.note = "web-0 has " + before["web-0"].mac
	return nil
}

// deploymentSlots replaces all pods of a Deployment several times. The number of its slots must not exceed the maximum
// number of pods that existed at the same time.
func deploymentSlots(ctx context.Context, s *scene) error {
	const replicas, rollouts = 3, 3
	counting, end := context.WithCancel(ctx)
	defer end()
	most := s.mostAtOnce(counting)
	d := s.deployment(workload{name: "web", replicas: replicas, podAnnotations: map[string]string{"fixedip.io/enabled": "true"}})
	if err := s.create(ctx, d); err != nil {
		return err
	}
	if _, err := s.rolledOut(ctx, "web", replicas); err != nil {
		return err
	}
	slots := 0
	for revision := range rollouts {
		if err := change(ctx, s, d, func(o *appsv1.Deployment) {
			o.Spec.Template.Annotations["revision"] = fmt.Sprint(revision)
		}); err != nil {
			return err
		}
		var err error
		if slots, err = s.rolledOut(ctx, "web", replicas); err != nil {
			return err
		}
	}
	end()
	n := <-most
	s.note = fmt.Sprintf("%d slots after %d rollouts, %d pods at once at most", slots, rollouts, n)
	if slots > n {
		return fmt.Errorf("the Deployment has %d slots, want at most %d, the maximum number of pods at the same time", slots, n)
	}
	return nil
}

// goneFor is the time for which a pod still counts after its deletion, because the scheduler may not have seen the deletion
// yet.
const goneFor = 2 * time.Second

// mostAtOnce counts the pods of the namespace until ctx ends, and then sends the maximum to the returned channel.
// Terminating pods count, because they still have their addresses.
func (s *scene) mostAtOnce(ctx context.Context) <-chan int {
	most := make(chan int, 1)
	go func() {
		n, seen := 0, map[string]time.Time{} // seen: the time at which each pod was last seen; key: its UID
		// Await ends only with ctx, and returns its error.
		_, _ = s.witness.Await(ctx, s.namespace, func(rows []witness.Row) bool {
			now := time.Now()
			for _, row := range rows {
				if row.UID != "" {
					seen[row.UID] = now
				}
			}
			at := 0
			for _, last := range seen {
				if now.Sub(last) < goneFor {
					at++
				}
			}
			n = max(n, at)
			return false
		})
		most <- n
	}()
	return most
}

// rolledOut returns when all pods of a Deployment have the last revision and are whole (see whole). It returns the
// number of FixedIPs in the namespace.
func (s *scene) rolledOut(ctx context.Context, name string, replicas int) (int, error) {
	err := eventually(ctx, func() error {
		d := &appsv1.Deployment{ObjectMeta: s.meta(name)}
		if err := s.api.Get(ctx, client.ObjectKeyFromObject(d), d); err != nil {
			return err
		}
		if d.Status.ObservedGeneration != d.Generation {
			return fmt.Errorf("the Deployment %s is not rolled out: its status is of generation %d, want %d", name, d.Status.ObservedGeneration, d.Generation)
		}
		if st := d.Status; int(st.UpdatedReplicas) != replicas || int(st.Replicas) != replicas || int(st.ReadyReplicas) != replicas {
			return fmt.Errorf("the Deployment %s is not rolled out: %d of %d pods have the last revision, %d are ready, %d exist", name, st.UpdatedReplicas, replicas, st.ReadyReplicas, st.Replicas)
		}
		pods := 0
		for _, row := range s.witness.State(s.namespace) {
			if row.UID == "" {
				continue
			}
			pods++
			if _, err := s.whole(ctx, row.Pod); err != nil {
				return err
			}
		}
		if pods != replicas {
			return fmt.Errorf("the Deployment %s has %d pods, want %d", name, pods, replicas)
		}
		return nil
	})
	return len(s.witness.Records(s.namespace)), err
}

// stayFor is the time for which stays checks a condition. A violation would happen within a shorter time.
const stayFor = 5 * time.Second

// stays returns an error if the condition does not hold throughout the time stayFor.
func stays(ctx context.Context, holds func() error) error {
	end := time.Now().Add(stayFor)
	for time.Now().Before(end) {
		if err := holds(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
	return nil
}
