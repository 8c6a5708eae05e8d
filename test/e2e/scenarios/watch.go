// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	sampleEvery = time.Second
	// disagreement is the time for which status, CiliumEndpoint and interface of a pod may differ, because different programs
	// write them and an agent may be restarting.
	disagreement = time.Minute
)

// sums are the counters of the watch.
type sums struct {
	samples, pods         int
	pings, lost, overlaps int
	// stalled counts pings that got no answer while the machine was stalled.
	stalled int
	slowest time.Duration
}

func (s sums) String() string {
	return fmt.Sprintf("%d samples of %d pods' addresses in status, CiliumEndpoint and interface; %d pings between control pods, %d lost and %d not judged because the machine was stalled, the slowest after %s; %d times the sandbox of a pod still existed when its replacement had the address",
		s.samples, s.pods, s.pings, s.lost, s.stalled, s.slowest.Round(time.Millisecond), s.overlaps)
}

// watch checks all pods of the cluster from before the first scenario until after the last. No two pods may share an address at
// any time, and the control pods must answer. A pod that was deleted by force may still have its address on the node where its
// replacement has the same address; the watch only counts that.
type watch struct {
	trial       *trial
	controlPods *controlPods
	end         context.CancelFunc
	done        sync.WaitGroup

	mu sync.Mutex
	// scenarios contains the names of the running scenarios.
	scenarios []string
	sums      sums
	found     []string
	// differs contains the pods whose sources of addresses differ. Key: the UID, and the source that differs from the
	// status. Value: the time at which the difference was first seen or last reported.
	differs map[string]time.Time
}

// startWatch creates the control pods, waits until all are ready and those with fixed addresses are whole (see scene.whole),
// and starts the watch.
func startWatch(ctx context.Context, t *trial) (*watch, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &watch{trial: t, end: cancel, differs: map[string]time.Time{}}
	t.watch = w
	var err error
	if w.controlPods, err = startControlPods(ctx, t); err != nil {
		cancel()
		return nil, err
	}
	w.done.Go(func() {
		tick := time.NewTicker(sampleEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				w.sample(ctx)
			}
		}
	})
	for _, p := range w.controlPods.pairs() {
		w.done.Go(func() { w.ping(ctx, p) })
	}
	return w, nil
}

// enter records that a scenario runs, for the description of violations.
func (w *watch) enter(scenario string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.scenarios = append(w.scenarios, scenario)
}

// leave records that a scenario has ended.
func (w *watch) leave(scenario string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.scenarios = slices.DeleteFunc(w.scenarios, func(s string) bool { return s == scenario })
}

func (w *watch) violations() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.found)
}

func (w *watch) violate(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	w.found = append(w.found, fmt.Sprintf("%s, during %q: %s", time.Now().Format("15:04:05.000"), w.scenarios, text))
}

// clients returns the control pods that send requests, one on each calm node; nil before the control pods run.
func (w *watch) clients() []sandbox {
	if w.controlPods == nil {
		return nil
	}
	return w.controlPods.clients
}

// finish ends the watch. It returns the counters, and an error for violations that were not reported before, for control
// pods that were disturbed, and if there was no sample or no ping.
func (w *watch) finish(ctx context.Context) (sums, error) {
	w.end()
	w.done.Wait()
	var errs []error
	if list := w.trial.newViolations(); len(list) > 0 {
		errs = append(errs, errors.New(strings.Join(list, "\n")))
	}
	errs = append(errs, w.controlPods.undisturbed(ctx))
	if w.sums.samples == 0 || w.sums.pings == 0 {
		errs = append(errs, fmt.Errorf("the watch is incomplete: %d samples and %d pings; both must be more than 0", w.sums.samples, w.sums.pings))
	}
	return w.sums, errors.Join(errs...)
}

// sample checks all pods once. Objects that cannot be read, for example while the API server restarts, are left out this
// time.
func (w *watch) sample(ctx context.Context) {
	var boxes []sandbox
	for _, node := range append(slices.Clone(calmNodes), victimNode, spareNode) {
		list, err := w.trial.wire.sandboxes(node)
		if err == nil {
			boxes = append(boxes, list...)
		}
	}
	w.checkWire(boxes)
	var pods corev1.PodList
	var ceps ciliumv2.CiliumEndpointList
	fromCache := &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: "0"}}
	short, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if w.trial.api.List(short, &pods, fromCache) != nil || w.trial.api.List(short, &ceps, fromCache) != nil {
		return
	}
	w.checkStatus(pods.Items)
	n := w.compare(pods.Items, ceps.Items, boxes)
	w.count(func(s *sums) {
		s.samples++
		s.pods += n
	})
}

// checkWire reports an address that the interfaces of two pods have. If one pod replaces the other on the same node, checkWire
// counts an overlap instead. Nodes are read one after the other, so checkWire first reads both interfaces again.
func (w *watch) checkWire(boxes []sandbox) {
	at := map[string]sandbox{} // by address
	for _, b := range boxes {
		for _, a := range b.addresses {
			other, taken := at[a]
			if !taken {
				at[a] = b
				continue
			}
			if !stillHas(other, a) || !stillHas(b, a) {
				continue
			}
			// A pod that was deleted by force may be replaced before its kubelet has seen the deletion.
			if other.key() == b.key() && other.node == b.node {
				w.count(func(s *sums) { s.overlaps++ })
				continue
			}
			w.violate("the interfaces of two pods have the address %s: %s and %s", a, other, b)
		}
	}
}

func stillHas(b sandbox, address string) bool {
	now, _, err := interfaceOf(b.path)
	return err == nil && slices.Contains(now, address)
}

// checkStatus reports an address that the status of two running pods contains.
func (w *watch) checkStatus(pods []corev1.Pod) {
	at := map[string]string{} // by address
	for _, p := range pods {
		if p.Spec.HostNetwork || p.DeletionTimestamp != nil || p.Status.Phase != corev1.PodRunning {
			continue
		}
		for _, ip := range p.Status.PodIPs {
			name := p.Namespace + "/" + p.Name
			if other, taken := at[ip.IP]; taken {
				w.violate("the address %s is in the status of two pods: %s and %s", ip.IP, other, name)
			}
			at[ip.IP] = name
		}
	}
}

// compare reports pods whose status, CiliumEndpoint and interface differ for longer than disagreement. It returns the number
// of pods that it compared.
func (w *watch) compare(pods []corev1.Pod, ceps []ciliumv2.CiliumEndpoint, boxes []sandbox) int {
	endpoints := map[string][]string{} // by namespace/name
	for i := range ceps {
		endpoints[ceps[i].Namespace+"/"+ceps[i].Name] = endpointAddresses(&ceps[i])
	}
	interfaces := map[string][]string{} // by UID of the pod
	for _, b := range boxes {
		interfaces[b.uid] = b.addresses
	}
	differs, n := map[string]string{}, 0
	for _, p := range pods {
		if p.Spec.HostNetwork || p.DeletionTimestamp != nil || p.Status.Phase != corev1.PodRunning || len(p.Status.PodIPs) == 0 {
			continue
		}
		n++
		key := p.Namespace + "/" + p.Name
		var ips []string
		for _, ip := range p.Status.PodIPs {
			ips = append(ips, ip.IP)
		}
		for place, have := range map[string][]string{"its CiliumEndpoint": endpoints[key], "its interface": interfaces[string(p.UID)]} {
			// A missing CiliumEndpoint or sandbox is no difference: the node of the pod may be powered off.
			if have != nil && !same(have, ips) {
				differs[string(p.UID)+place] = fmt.Sprintf("pod %s has %v in its status, and %s has %v", key, ips, place, have)
			}
		}
	}
	w.mu.Lock()
	since := w.differs
	w.differs = map[string]time.Time{}
	var late []string
	for key, text := range differs {
		began, known := since[key]
		if !known {
			began = time.Now()
		}
		if time.Since(began) > disagreement {
			late = append(late, text)
			began = time.Now() // reported again only after disagreement
		}
		w.differs[key] = began
	}
	w.mu.Unlock()
	for _, text := range late {
		w.violate("%s, for more than %s", text, disagreement)
	}
	return n
}
