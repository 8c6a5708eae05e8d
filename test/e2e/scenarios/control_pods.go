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

// controlPods are pods that no scenario touches: two with fixed addresses, and unreserved pods of a Deployment and a
// DaemonSet, all on the calm nodes.
type controlPods struct {
	trial *trial
	// pods are the control pods at the start. Key: the pod name.
	pods map[string]corev1.Pod
	// boxes are the sandboxes of the pods. Key: the pod name.
	boxes map[string]sandbox
	// clients are the control pods that send requests, one on each calm node.
	clients []sandbox
}

const (
	controlNamespace = "control-pods"
	pingEvery        = 500 * time.Millisecond
	// controlCPU is the CPU request of a control pod. It ensures that the pod can answer pings on a busy machine.
	controlCPU = "300m"
)

func startControlPods(ctx context.Context, t *trial) (*controlPods, error) {
	s := &scene{trial: t, namespace: controlNamespace}
	if err := s.open(ctx); err != nil {
		return nil, err
	}
	for _, obj := range []client.Object{
		s.statefulSet(workload{name: "fixed", replicas: 2, cpu: controlCPU}),
		s.deployment(workload{name: "unreserved", replicas: 2, cpu: controlCPU, scheduler: stockScheduler}),
		s.daemonSet(workload{name: "everywhere", cpu: controlCPU, scheduler: stockScheduler}),
	} {
		if err := s.create(ctx, obj); err != nil {
			return nil, err
		}
	}
	b := &controlPods{trial: t}
	err := eventually(ctx, func() error {
		b.pods, b.boxes, b.clients = map[string]corev1.Pod{}, map[string]sandbox{}, nil
		list, err := b.list(ctx)
		if err != nil {
			return err
		}
		nodes := map[string]bool{}
		for _, pod := range list {
			if !isReady(&pod) || len(pod.Status.PodIPs) != 2 {
				return fmt.Errorf("control pod %s is not ready or does not have two IPs: %s", pod.Name, reasons(&pod))
			}
			box, err := t.wire.sandboxOf(pod.Spec.NodeName, string(pod.UID))
			if err != nil {
				return err
			}
			b.pods[pod.Name], b.boxes[pod.Name] = pod, box
			if !nodes[pod.Spec.NodeName] {
				nodes[pod.Spec.NodeName] = true
				b.clients = append(b.clients, box)
			}
		}
		if len(b.pods) != 6 || len(nodes) != 2 {
			return fmt.Errorf("got %d control pods on %d nodes, want 6 on 2", len(b.pods), len(nodes))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("start the control pods: %w", err)
	}
	if _, err := s.trial.awaitControlPods(ctx, s, b); err != nil {
		return nil, fmt.Errorf("wait for the control pods with fixed addresses: %w", err)
	}
	return b, nil
}

// awaitControlPods makes b the control pods of the watch and returns when the pods with fixed addresses are whole (see
// scene.whole).
func (t *trial) awaitControlPods(ctx context.Context, s *scene, b *controlPods) (identities, error) {
	t.watch.controlPods = b
	return s.awaitSet(ctx, "fixed", 2)
}

func (b *controlPods) list(ctx context.Context) ([]corev1.Pod, error) {
	var list corev1.PodList
	if err := b.trial.api.List(ctx, &list, client.InNamespace(controlNamespace)); err != nil {
		return nil, fmt.Errorf("list the control pods: %w", err)
	}
	return list.Items, nil
}

// undisturbed returns an error unless the control pods are still the same pods, ready, with the same addresses and without
// restarts.
func (b *controlPods) undisturbed(ctx context.Context) error {
	list, err := b.list(ctx)
	if err != nil {
		return err
	}
	var errs []error
	if len(list) != len(b.pods) {
		errs = append(errs, fmt.Errorf("got %d control pods, want %d", len(list), len(b.pods)))
	}
	for _, pod := range list {
		was, ok := b.pods[pod.Name]
		switch {
		case !ok || was.UID != pod.UID:
			errs = append(errs, fmt.Errorf("control pod %s was replaced", pod.Name))
		case !slices.Equal(was.Status.PodIPs, pod.Status.PodIPs):
			errs = append(errs, fmt.Errorf("control pod %s has the IPs %v, want %v", pod.Name, pod.Status.PodIPs, was.Status.PodIPs))
		case !isReady(&pod) || pod.Status.ContainerStatuses[0].RestartCount > 0:
			errs = append(errs, fmt.Errorf("control pod %s was restarted or is not ready: %s", pod.Name, reasons(&pod)))
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

// pairs returns the pairs of control pods to ping, each in both families: the two pods with fixed addresses in both
// directions, one unreserved pod to the other, and each of these two to fixed-0.
func (b *controlPods) pairs() []pair {
	var list []pair
	add := func(from, to string) {
		for _, ip := range b.pods[to].Status.PodIPs {
			list = append(list, pair{b.boxes[from], to, ip.IP})
		}
	}
	add("fixed-0", "fixed-1")
	add("fixed-1", "fixed-0")
	var unreserved []string
	for name := range b.pods {
		if strings.HasPrefix(name, "unreserved-") {
			unreserved = append(unreserved, name)
		}
	}
	slices.Sort(unreserved)
	add(unreserved[0], unreserved[1])
	add(unreserved[1], "fixed-0")
	add(unreserved[0], "fixed-0")
	return list
}

// ping sends requests from p.from to p.address repeatedly until ctx ends. A request without an answer is lost, unless a control
// measurement shows that the machine was stalled. A request that fails within lateAfter gets no control measurement. A lost
// request and an answer of another pod are violations.
func (w *watch) ping(ctx context.Context, p pair) {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		stalled := make(chan bool, 1)
		pinging, endPing := context.WithCancel(ctx)
		late := time.AfterFunc(lateAfter, func() { stalled <- w.stalled(pinging, ctx, p) })
		began := time.Now()
		a, err := p.from.fetch(ctx, p.address)
		took := time.Since(began)
		endPing()
		if ctx.Err() != nil {
			late.Stop()
			return
		}
		// A request with a late answer is not lost.
		lost := err != nil
		if err == nil && a.Hostname != p.to {
			w.violate("a request of control pod %s to control pod %s at %s was answered by pod %s", p.from.key(), p.to, p.address, a.Hostname)
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
			w.violate("control pod %s got no answer from control pod %s at %s: %v", p.from.key(), p.to, p.address, err)
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
	// stallAfter is the time limit of a control measurement. If one takes longer, the machine counts as stalled.
	stallAfter = time.Second
)

// stalled reports whether a control measurement shows that the machine is stalled. It repeats the measurement until the ping
// ends, because an idle process may get CPU time for the first measurement and not for the next.
func (w *watch) stalled(pinging, ctx context.Context, p pair) bool {
	for {
		if w.measureStall(ctx, p) {
			return true
		}
		if !wait(pinging, lateAfter) {
			return false
		}
	}
}

// measureStall reports whether the machine, and not the pod network, delays the pings of a pair. The machine is stalled if
// the pod p.to does not answer in time over the loopback interface of its own network namespace, where no packet is lost.
// It is also stalled if the kubelet of the node of p.to does not accept a connection in time: the connection comes from the
// node of p.from and uses no tunnel.
func (w *watch) measureStall(ctx context.Context, p pair) bool {
	late := make(chan bool, 2)
	began := time.Now()
	go func() {
		_, err := w.controlPods.boxes[p.to].fetch(ctx, "127.0.0.1")
		late <- err != nil || time.Since(began) > stallAfter
	}()
	go func() {
		err := w.trial.wire.reach(ctx, p.from.node, w.controlPods.boxes[p.to].node)
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
