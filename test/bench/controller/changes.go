// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/test/bench/apiserver"
	"fixedip.io/fixedip/test/bench/world"
)

// releaseNodes is the maximum number of nodes on which addresses are released.
const releaseNodes = 1000

// watchNodes watches the changes of CiliumNodes from now on. The API server ends the watch of a client that reads too
// slowly; the result then continues where that watch ended.
func (b *bench) watchNodes(ctx context.Context) (watch.Interface, error) {
	var now ciliumv2.CiliumNodeList
	if err := b.api.List(ctx, &now, client.Limit(1)); err != nil {
		return nil, fmt.Errorf("list the CiliumNodes: %w", err)
	}
	w, err := watchtools.NewRetryWatcherWithContext(ctx, now.ResourceVersion, &toolscache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return b.api.Watch(ctx, &ciliumv2.CiliumNodeList{}, &client.ListOptions{Raw: &o})
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watch the CiliumNodes: %w", err)
	}
	return w, nil
}

// join creates Nodes and CiliumNodes, as the kubelets and agents of new nodes do, and measures for each the time until its
// pool has an entry.
func (b *bench) join(ctx context.Context, s *step) error {
	began := time.Now()
	watching, stop := context.WithCancel(ctx)
	defer stop()
	watcher, err := b.watchNodes(watching)
	if err != nil {
		return err
	}
	defer watcher.Stop()
	// created contains the time just before the CiliumNode of each joining node was created, and joined the time from that
	// moment until its pool had an entry. Key: the name of the node.
	var created sync.Map
	joined := map[string]time.Duration{}
	creating := make(chan error, 1)
	go func() {
		creating <- apiserver.InParallel(ctx, b.joining, func(ctx context.Context, i int) error {
			node := b.world.NewNode(b.world.Nodes + i)
			if err := b.api.Create(ctx, node); err != nil {
				return fmt.Errorf("create node %s: %w", node.Name, err)
			}
			cn := b.world.NewCiliumNode(b.world.Nodes+i, node.UID)
			created.Store(cn.Name, time.Now())
			if err := b.api.Create(ctx, cn); err != nil {
				return fmt.Errorf("create CiliumNode %s: %w", cn.Name, err)
			}
			return nil
		})
	}()
	for len(joined) < b.joining {
		select {
		case err := <-creating:
			if err != nil {
				return err
			}
		case e, open := <-watcher.ResultChan():
			if !open {
				return errors.New("the watch of the CiliumNodes ended")
			}
			cn, ok := e.Object.(*ciliumv2.CiliumNode)
			if !ok {
				return fmt.Errorf("the watch of the CiliumNodes sent an event %s without a CiliumNode: %+v", e.Type, e.Object)
			}
			at, joining := created.Load(cn.Name)
			if joining && len(cn.Spec.IPAM.Pool) > 0 && joined[cn.Name] == 0 {
				joined[cn.Name] = time.Since(at.(time.Time))
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	s.nodes = b.joining
	s.quantiles(slices.Collect(maps.Values(joined)))
	return b.settle(ctx, s, began)
}

// restart deletes pods and creates them again on their nodes, as a rollout does.
func (b *bench) restart(ctx context.Context, s *step) error {
	began := time.Now()
	err := apiserver.InParallel(ctx, min(b.restarted, b.world.Fixed), func(ctx context.Context, i int) error {
		p := b.world.FixedPod(i)
		meta := metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}
		for _, old := range []client.Object{&corev1.Pod{ObjectMeta: meta}, &ciliumv2.CiliumEndpoint{ObjectMeta: meta}} {
			if err := b.api.Delete(ctx, old, client.GracePeriodSeconds(0)); err != nil {
				return fmt.Errorf("delete %T %s/%s: %w", old, p.Namespace, p.Name, err)
			}
		}
		pod := b.world.NewPod(p)
		if err := b.api.Create(ctx, pod); err != nil {
			return fmt.Errorf("create pod %s/%s: %w", p.Namespace, p.Name, err)
		}
		binding := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: world.NodeName(p.Node)}}
		if err := b.api.SubResource("binding").Create(ctx, pod, binding); err != nil {
			return fmt.Errorf("bind pod %s/%s: %w", p.Namespace, p.Name, err)
		}
		// The status is patched, not updated, because the controller may have changed the pod after its creation.
		bound := client.MergeFrom(pod.DeepCopy())
		pod.Status = b.world.Pod(p).Status
		if err := b.api.Status().Patch(ctx, pod, bound); err != nil {
			return fmt.Errorf("write the status of pod %s/%s: %w", p.Namespace, p.Name, err)
		}
		if err := b.api.Create(ctx, b.world.NewEndpoint(p, pod.UID)); err != nil {
			return fmt.Errorf("create CiliumEndpoint %s/%s: %w", p.Namespace, p.Name, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return b.settle(ctx, s, began)
}

// release deletes StatefulSets with pods on at most releaseNodes nodes. As in a real cluster, all pods are terminating
// before the first one ends. Pods end on b.ending nodes at the same time, and on each of these nodes one after another. For
// the address of each pod, release measures the time from the end of the last pod of the node until the pool entry no longer
// names the pod; 0 if the entry changed before that end.
func (b *bench) release(ctx context.Context, s *step) error {
	began := time.Now()
	var pods []world.Place
	// addresses contains the number of each pod in pods. Key: its address.
	addresses := map[string]int{}
	nodes := min(releaseNodes, b.world.Nodes)
	for i := b.world.Fixed - 1; i >= 0 && len(pods) < b.released; i-- {
		if p := b.world.FixedPod(i); p.Node < nodes {
			pods = append(pods, p)
		}
	}
	slices.SortStableFunc(pods, func(a, b world.Place) int { return a.Node - b.Node })
	workloads := map[types.NamespacedName]bool{}
	for i, p := range pods {
		addresses[p.Address.String()] = i
		workloads[types.NamespacedName{Namespace: p.Namespace, Name: p.Workload}] = true
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	watcher, err := b.watchNodes(watching)
	if err != nil {
		return err
	}
	defer watcher.Stop()
	for w := range workloads {
		if err := b.api.Delete(ctx, &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: w.Name}}); err != nil {
			return fmt.Errorf("delete StatefulSet %s: %w", w, err)
		}
	}
	err = apiserver.InParallel(ctx, len(pods), func(ctx context.Context, i int) error {
		p := pods[i]
		if err := b.api.Delete(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}}); err != nil {
			return fmt.Errorf("delete pod %s/%s: %w", p.Namespace, p.Name, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	b.logf("%d pods of %d StatefulSets are terminating", len(pods), len(workloads))
	// gone contains the time at which the last pod of each node ended. The goroutine of the node writes the element of the
	// node, before done receives the result of all goroutines.
	gone := make([]time.Time, nodes)
	done := make(chan error, 1)
	go func() {
		ending, each := errgroup.WithContext(ctx)
		ending.SetLimit(b.ending)
		for node := range nodes {
			ending.Go(func() error {
				return b.endPods(each, world.NodeName(node), podsOn(pods, world.NodeName(node)), &gone[node])
			})
		}
		done <- ending.Wait()
	}()
	cleared := make([]time.Time, len(pods))
	deleting := true
	for left := len(pods); left > 0 || deleting; {
		select {
		case err := <-done:
			if err != nil {
				return err
			}
			deleting = false
		case e, open := <-watcher.ResultChan():
			if !open {
				return errors.New("the watch of the CiliumNodes ended")
			}
			cn, ok := e.Object.(*ciliumv2.CiliumNode)
			if !ok {
				return fmt.Errorf("the watch of the CiliumNodes sent an event %s without a CiliumNode: %+v", e.Type, e.Object)
			}
			for _, p := range podsOn(pods, cn.Name) {
				i := addresses[p.Address.String()]
				if cn.Spec.IPAM.Pool[p.Address.String()].Owner != p.Namespace+"/"+p.Name && cleared[i].IsZero() {
					cleared[i] = time.Now()
					left--
				}
			}
		case <-b.controller.Exited():
			return fmt.Errorf("the controller exited while addresses were released: %s; the log is %s", b.controller.ExitState(), b.controller.LogPath())
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	took := make([]time.Duration, len(pods))
	for i := range pods {
		took[i] = max(0, cleared[i].Sub(gone[pods[i].Node]))
	}
	changed := map[int]bool{}
	for _, p := range pods {
		changed[p.Node] = true
	}
	s.nodes = len(changed)
	s.quantiles(took)
	s.Took = time.Since(began).Seconds()
	return nil
}

// endPods removes the pods of a node and their CiliumEndpoints as the kubelet and the agent would: the pods one after
// another, and at the same time the CiliumEndpoints one after another. Then it removes the addresses of all pods from
// status.ipam.used in one patch, because one report of an agent contains all changes since the previous report. It sets gone
// to the time at which the last pod was removed.
func (b *bench) endPods(ctx context.Context, name string, pods []world.Place, gone *time.Time) error {
	if len(pods) == 0 {
		return nil
	}
	programs, each := errgroup.WithContext(ctx)
	programs.Go(func() error {
		for _, p := range pods {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}}
			if err := b.api.Delete(each, pod, client.GracePeriodSeconds(0)); err != nil {
				return fmt.Errorf("remove pod %s/%s: %w", p.Namespace, p.Name, err)
			}
		}
		*gone = time.Now()
		return nil
	})
	var unused []string
	programs.Go(func() error {
		for _, p := range pods {
			endpoint := &ciliumv2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}}
			if err := b.api.Delete(each, endpoint); err != nil {
				return fmt.Errorf("delete CiliumEndpoint %s/%s: %w", p.Namespace, p.Name, err)
			}
			unused = append(unused, fmt.Sprintf(`{"op":"remove","path":"/status/ipam/used/%s"}`, p.Address))
		}
		return nil
	})
	if err := programs.Wait(); err != nil {
		return err
	}
	patch := client.RawPatch(types.JSONPatchType, []byte("["+strings.Join(unused, ",")+"]"))
	node := &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := b.api.Status().Patch(ctx, node, patch); err != nil {
		return fmt.Errorf("remove %d addresses from status.ipam.used of CiliumNode %s: %w", len(unused), name, err)
	}
	return nil
}

// podsOn returns the pods on a node. pods are sorted by their nodes.
func podsOn(pods []world.Place, node string) []world.Place {
	first, _ := slices.BinarySearchFunc(pods, node, func(p world.Place, node string) int { return cmp.Compare(world.NodeName(p.Node), node) })
	last := first
	for last < len(pods) && world.NodeName(pods[last].Node) == node {
		last++
	}
	return pods[first:last]
}

// settle waits until the controller is idle, and sets s.Took to the time from began until the controller became idle.
func (b *bench) settle(ctx context.Context, s *step, began time.Time) error {
	at, err := b.controller.awaitQuiet(ctx, b.requests.total)
	s.Took = at.Seconds() - began.Sub(b.controller.began).Seconds()
	return err
}

// quantiles sets P50 and P99 to quantiles of the durations. It sets nothing if there are no durations.
func (s *step) quantiles(d []time.Duration) {
	if len(d) == 0 {
		return
	}
	slices.Sort(d)
	s.P50, s.P99 = d[len(d)/2].Seconds(), d[len(d)*99/100].Seconds()
}
