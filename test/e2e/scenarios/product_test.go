// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TestOneReady checks that each step of a pod to readiness changes the error, because a new error counts as progress.
func TestOneReady(t *testing.T) {
	pod := func(name string, change func(*corev1.Pod)) corev1.Pod {
		p := corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "fixedip-scheduler"}},
			Status: corev1.PodStatus{
				Phase:             corev1.PodRunning,
				Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, Message: "containers with unready status: [c]"}},
				ContainerStatuses: []corev1.ContainerStatus{{Name: "c"}},
			},
		}
		if change != nil {
			change(&p)
		}
		return p
	}
	waiting := pod("a", func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodPending
		p.Status.ContainerStatuses[0].State.Waiting = &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}
	})
	running := func(started bool, restarts int32) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].State.Running = &corev1.ContainerStateRunning{}
			p.Status.ContainerStatuses[0].Started = ptr.To(started)
			p.Status.ContainerStatuses[0].RestartCount = restarts
		}
	}
	ready := pod("b", func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionTrue })
	for name, c := range map[string]struct {
		pods []corev1.Pod
		want string
	}{
		"no pod":               {want: "no pod of fixedip-scheduler is ready: it has none"},
		"container is created": {pods: []corev1.Pod{waiting}, want: "no pod of fixedip-scheduler is ready: a is Pending: containers with unready status: [c]; ContainerCreating"},
		"container has started": {
			pods: []corev1.Pod{pod("a", running(false, 0))},
			want: "no pod of fixedip-scheduler is ready: a is Running: containers with unready status: [c]; the startup probe of c has not succeeded",
		},
		"startup probe has succeeded": {
			pods: []corev1.Pod{pod("a", running(true, 0))},
			want: "no pod of fixedip-scheduler is ready: a is Running: containers with unready status: [c]",
		},
		"restarted": {
			pods: []corev1.Pod{pod("a", running(true, 2))},
			want: "no pod of fixedip-scheduler is ready: a is Running: containers with unready status: [c]; c was restarted 2 times",
		},
		"one is being deleted": {
			pods: []corev1.Pod{waiting, pod("b", func(p *corev1.Pod) {
				*p = ready
				p.DeletionTimestamp = ptr.To(metav1.Now())
			})},
			want: "no pod of fixedip-scheduler is ready: a is Pending: containers with unready status: [c]; ContainerCreating; b is being deleted",
		},
		"one of two is ready": {pods: []corev1.Pod{waiting, ready}},
		"another program is ready": {
			pods: []corev1.Pod{pod("b", func(p *corev1.Pod) {
				*p = ready
				p.Labels = map[string]string{"app": "fixedip-controller"}
			})},
			want: "no pod of fixedip-scheduler is ready: it has none",
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := oneReady("fixedip-scheduler", c.pods)
			if (err == nil) != (c.want == "") || err != nil && err.Error() != c.want {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
