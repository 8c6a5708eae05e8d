// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/kustomize/api/types"
)

// TestTagsAreText checks that the kustomization keeps tags that YAML would read as numbers, such as commits of digits only.
func TestTagsAreText(t *testing.T) {
	for _, tag := range []string{"v1.0.0", "3200406", "12e4567", "0x10", "1_000"} {
		var k types.Kustomization
		if err := k.Unmarshal([]byte(fmt.Sprintf(installation, "../manifests", tag, tag, coolDown))); err != nil {
			t.Errorf("unmarshal the kustomization with the tag %s: %v", tag, err)
			continue
		}
		for _, image := range k.Images {
			if image.NewTag != tag {
				t.Errorf("image %s has the tag %q, want %q", image.Name, image.NewTag, tag)
			}
		}
		if len(k.Images) != 2 {
			t.Errorf("the kustomization with the tag %s has %d images, want 2", tag, len(k.Images))
		}
	}
}

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
	running := func(started bool) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].State.Running = &corev1.ContainerStateRunning{}
			p.Status.ContainerStatuses[0].Started = ptr.To(started)
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
			pods: []corev1.Pod{pod("a", running(false))},
			want: "no pod of fixedip-scheduler is ready: a is Running: containers with unready status: [c]; the startup probe of c has not succeeded",
		},
		"startup probe has succeeded": {
			pods: []corev1.Pod{pod("a", running(true))},
			want: "no pod of fixedip-scheduler is ready: a is Running: containers with unready status: [c]",
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
