// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/test/bench/apiserver"
	"fixedip.io/fixedip/test/bench/measure"
)

// progressTimeout is the maximum time until the first bind of an arm, and between two binds. With 150,000 pods the first bind came
// after 75 seconds (e5656ee6), so that two minutes are too few for a slower machine.
const progressTimeout = 10 * time.Minute

// createPods creates the pods in parallel. It returns the first error.
func (b *bench) createPods(ctx context.Context, pods []*corev1.Pod) error {
	return apiserver.InParallel(ctx, len(pods), func(ctx context.Context, i int) error {
		if err := b.api.Create(ctx, pods[i]); err != nil {
			return fmt.Errorf("create pod %s/%s: %w", pods[i].Namespace, pods[i].Name, err)
		}
		return nil
	})
}

// deletePods deletes pods with the grace period 0, because no kubelet runs that would confirm that they have stopped.
func (b *bench) deletePods(ctx context.Context, pods []*corev1.Pod) error {
	return apiserver.InParallel(ctx, len(pods), func(ctx context.Context, i int) error {
		if err := b.api.Delete(ctx, pods[i], client.GracePeriodSeconds(0)); err != nil {
			return fmt.Errorf("delete pod %s/%s: %w", pods[i].Namespace, pods[i].Name, err)
		}
		return nil
	})
}

// binds contains the times at which the first and the last pod of an arm were bound, the CPU time that the scheduler had
// used at the first bind, and the metrics of the API server just after it.
type binds struct {
	first, last time.Time
	cpuAtFirst  time.Duration
	atFirst     measure.Metrics
}

// watchPods watches the pods of an arm, beginning with their current states.
func (b *bench) watchPods(ctx context.Context, a arm) (watch.Interface, error) {
	watcher, err := b.api.Watch(ctx, &corev1.PodList{}, client.MatchingLabels{armLabel: a.name})
	if err != nil {
		return nil, fmt.Errorf("watch the pods: %w", err)
	}
	return watcher, nil
}

// watchBinds waits until the scheduler has bound all pods of an arm, and returns the times of the first and the last
// bind. A bind counts when its watch event arrives. watcher is the first watch; if it ends, watchBinds starts another
// one.
func (b *bench) watchBinds(ctx context.Context, a arm, watcher watch.Interface, scheduler *cluster.Process) (found binds, err error) {
	defer func() { watcher.Stop() }()
	pods := a.count
	bound := map[types.UID]bool{}
	stuck := time.NewTimer(progressTimeout)
	defer stuck.Stop()
	for len(bound) < pods {
		select {
		case e, open := <-watcher.ResultChan():
			if !open {
				// The API server ends the watch of a client that reads too slowly.
				next, err := b.watchPods(ctx, a)
				if err != nil {
					return found, err
				}
				watcher = next
				continue
			}
			pod, ok := e.Object.(*corev1.Pod)
			if !ok {
				return found, fmt.Errorf("the watch of the pods sent an event %s without a pod: %+v", e.Type, e.Object)
			}
			if pod.Spec.NodeName == "" || bound[pod.UID] {
				continue
			}
			bound[pod.UID] = true
			stuck.Reset(progressTimeout)
			found.last = time.Now()
			if len(bound) > 1 {
				continue
			}
			found.first = found.last
			if found.cpuAtFirst, err = measure.CPU(scheduler.PID()); err != nil {
				return found, err
			}
			if found.atFirst, err = b.apiMetrics(ctx); err != nil {
				return found, err
			}
		case <-scheduler.Exited():
			return found, fmt.Errorf("the scheduler exited: %s; the log is %s", scheduler.ExitState(), scheduler.LogPath())
		case <-stuck.C:
			return found, fmt.Errorf("%d of %d pods are bound, and no further pod was bound for %s; the log of the scheduler is %s", len(bound), pods, progressTimeout, scheduler.LogPath())
		case <-ctx.Done():
			return found, context.Cause(ctx)
		}
	}
	return found, nil
}
