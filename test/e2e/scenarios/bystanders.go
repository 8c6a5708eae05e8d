// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// bystanders are control pods that no scenario touches: two with fixed addresses, and unreserved pods of a Deployment and a
// DaemonSet, all on the calm nodes.
type bystanders struct {
	trial *trial
	// pods are the pods at the start. Key: the pod name.
	pods map[string]corev1.Pod
	// boxes are the sandboxes of the pods. Key: the pod name.
	boxes map[string]sandbox
	// askers are the pods that send requests, one on each calm node.
	askers []sandbox
}

const (
	bystanderNamespace = "bystanders"
	pingEvery          = 500 * time.Millisecond
	// bystanderCPU is the CPU request of the bystanders. It ensures that they can answer pings on a busy machine.
	bystanderCPU = "300m"
)

func startBystanders(ctx context.Context, t *trial) (*bystanders, error) {
	s := &scene{trial: t, namespace: bystanderNamespace}
	if err := s.open(ctx); err != nil {
		return nil, err
	}
	for _, obj := range []client.Object{
		s.statefulSet(workload{name: "fixed", replicas: 2, cpu: bystanderCPU}),
		s.deployment(workload{name: "ordinary", replicas: 2, cpu: bystanderCPU, scheduler: stockScheduler}),
		s.daemonSet(workload{name: "everywhere", cpu: bystanderCPU, scheduler: stockScheduler}),
	} {
		if err := s.create(ctx, obj); err != nil {
			return nil, err
		}
	}
	b := &bystanders{trial: t}
	err := eventually(ctx, func() error {
		b.pods, b.boxes, b.askers = map[string]corev1.Pod{}, map[string]sandbox{}, nil
		list, err := b.list(ctx)
		if err != nil {
			return err
		}
		nodes := map[string]bool{}
		for _, pod := range list {
			if !isReady(&pod) || len(pod.Status.PodIPs) != 2 {
				return fmt.Errorf("pod %s is not ready: %s", pod.Name, reasons(&pod))
			}
			box, err := t.wire.sandboxOf(pod.Spec.NodeName, string(pod.UID))
			if err != nil {
				return err
			}
			b.pods[pod.Name], b.boxes[pod.Name] = pod, box
			if !nodes[pod.Spec.NodeName] {
				nodes[pod.Spec.NodeName] = true
				b.askers = append(b.askers, box)
			}
		}
		if len(b.pods) != 6 || len(nodes) != 2 {
			return fmt.Errorf("there are %d pods on %d nodes, not 6 on 2", len(b.pods), len(nodes))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("start the pods that are left alone: %w", err)
	}
	if _, err := s.trial.bystandersWhole(ctx, s, b); err != nil {
		return nil, fmt.Errorf("start the pods that are left alone: %w", err)
	}
	return b, nil
}

// bystandersWhole makes b the bystanders of the watch and returns when those with fixed addresses are whole.
func (t *trial) bystandersWhole(ctx context.Context, s *scene, b *bystanders) (identities, error) {
	t.watch.bystanders = b
	return s.settled(ctx, "fixed", 2)
}

func (b *bystanders) list(ctx context.Context) ([]corev1.Pod, error) {
	var list corev1.PodList
	if err := b.trial.api.List(ctx, &list, client.InNamespace(bystanderNamespace)); err != nil {
		return nil, fmt.Errorf("list the pods that are left alone: %w", err)
	}
	return list.Items, nil
}

// undisturbed returns an error unless the bystanders are still the same pods, with the same addresses and without restarts.
func (b *bystanders) undisturbed(ctx context.Context) error {
	list, err := b.list(ctx)
	if err != nil {
		return err
	}
	var errs []error
	if len(list) != len(b.pods) {
		errs = append(errs, fmt.Errorf("%d pods were left alone, and now there are %d", len(b.pods), len(list)))
	}
	for _, pod := range list {
		was, ok := b.pods[pod.Name]
		switch {
		case !ok || was.UID != pod.UID:
			errs = append(errs, fmt.Errorf("pod %s, which was to be left alone, was replaced", pod.Name))
		case !slices.Equal(was.Status.PodIPs, pod.Status.PodIPs):
			errs = append(errs, fmt.Errorf("pod %s, which was to be left alone, had %v and has %v", pod.Name, was.Status.PodIPs, pod.Status.PodIPs))
		case !isReady(&pod) || pod.Status.ContainerStatuses[0].RestartCount > 0:
			errs = append(errs, fmt.Errorf("pod %s, which was to be left alone, was restarted or is not ready: %s", pod.Name, reasons(&pod)))
		}
	}
	return errors.Join(errs...)
}

// pair is a pod that sends requests to an address of another pod.
type pair struct {
	from    sandbox
	to      string
	address string
}

// pairs returns the pairs of bystanders: between nodes in both directions, and from unreserved pods to unreserved and fixed
// ones, in both families.
func (b *bystanders) pairs() []pair {
	var list []pair
	ask := func(from, to string) {
		for _, ip := range b.pods[to].Status.PodIPs {
			list = append(list, pair{b.boxes[from], to, ip.IP})
		}
	}
	ask("fixed-0", "fixed-1")
	ask("fixed-1", "fixed-0")
	var ordinary []string
	for name := range b.pods {
		if strings.HasPrefix(name, "ordinary-") {
			ordinary = append(ordinary, name)
		}
	}
	slices.Sort(ordinary)
	ask(ordinary[0], ordinary[1])
	ask(ordinary[1], "fixed-0")
	ask(ordinary[0], "fixed-0")
	return list
}

// ping sends requests repeatedly until ctx ends. A request without an answer is lost, unless the machine was stalled. A lost
// request and an answer of another pod are violations.
func (w *watch) ping(ctx context.Context, p pair) {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		stalled := make(chan bool, 1)
		asking, answered := context.WithCancel(ctx)
		late := time.AfterFunc(lateAfter, func() { stalled <- w.stalled(asking, ctx, p) })
		began := time.Now()
		a, err := p.from.fetch(ctx, p.address)
		took := time.Since(began)
		answered()
		if ctx.Err() != nil {
			late.Stop()
			return
		}
		// A request with a late answer is not lost.
		lost := err != nil
		if err == nil && a.Hostname != p.to {
			w.violate("%s asked %s at %s, and there answers %s", p.from.key(), p.to, p.address, a.Hostname)
		}
		if !late.Stop() && <-stalled && lost {
			lost = false
			w.count(func(s *sums) { s.stalled++ })
		}
		w.count(func(s *sums) {
			s.pings++
			s.slowest = max(s.slowest, took)
			if lost {
				s.lost++
			}
		})
		if lost {
			w.violate("%s got no answer from %s at %s: %v", p.from.key(), p.to, p.address, err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

const (
	// lateAfter is the time after which a ping without an answer gets a control measurement.
	lateAfter = time.Second
	// stallAfter is the time after which the answer to a control measurement shows that the machine is stalled.
	stallAfter = time.Second
)

// stalled reports whether a control measurement shows that the machine is stalled. It measures until the ping ends, because
// an idle process may be served once and then wait for CPU time.
func (w *watch) stalled(asking, ctx context.Context, p pair) bool {
	for {
		if w.standsStill(ctx, p) {
			return true
		}
		if !wait(asking, lateAfter) {
			return false
		}
	}
}

// standsStill reports whether the machine is stalled rather than the pod network: the pod does not answer in time within its
// own network, where no packet is lost, or the kubelet of its node does not accept a connection in time, without a tunnel.
func (w *watch) standsStill(ctx context.Context, p pair) bool {
	late := make(chan bool, 2)
	began := time.Now()
	go func() {
		_, err := w.bystanders.boxes[p.to].fetch(ctx, "127.0.0.1")
		late <- err != nil || time.Since(began) > stallAfter
	}()
	go func() {
		err := w.trial.wire.reach(ctx, p.from.node, w.bystanders.boxes[p.to].node)
		late <- err != nil || time.Since(began) > stallAfter
	}()
	if <-late {
		return true
	}
	return <-late
}

func (w *watch) count(f func(*sums)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(&w.sums)
}
