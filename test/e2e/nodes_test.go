// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/hack/realcluster"
	"fixedip.io/fixedip/hack/realcluster/layout"
)

// TestNodes checks the operations of package realcluster on nodes: kill, start, partition, reboot, reinstall, add and stop.
func TestNodes(t *testing.T) {
	c := start(t, func(o *realcluster.Options) { o.Spare = 1 })
	cfg, err := c.RESTConfig(cluster.Admin)
	if err != nil {
		t.Fatal(err)
	}
	s := &scene{t: t, cluster: c, api: kubernetes.NewForConfigOrDie(cfg)}
	one, two := c.Node("node-1"), c.Node("node-2")
	near, far := s.runPod("near", "node-1"), s.runPod("far", "node-2")
	s.answers(two, near)
	s.answers(one, far)

	for _, part := range []realcluster.Part{realcluster.Agent, realcluster.Kubelet, realcluster.Containerd} {
		t.Logf("the %s of node-1 is killed", part)
		s.must(one.Kill(part))
		s.answers(two, near)
		s.must(one.Start(within(t), part))
		s.must(one.WaitReady(within(t)))
		s.answers(two, near)
	}

	t.Log("node-1 is partitioned")
	s.must(one.Partition())
	if answer, err := two.Fetch(within(t), near.Status.PodIP); err == nil {
		t.Errorf("pod %s still answers although node-1 is partitioned: %s", near.Name, answer)
	}
	s.must(one.Heal())
	s.answers(two, near)

	t.Log("node-1 is rebooted")
	s.must(one.Reboot(within(t), true))
	s.must(one.WaitReady(within(t)))
	near = s.restarted(near)
	s.answers(two, near)

	t.Log("node-1 is reinstalled")
	s.must(one.Reboot(within(t), false))
	s.must(one.WaitReady(within(t)))
	near = s.restarted(near)
	s.answers(two, near)

	t.Log("a third node joins")
	s.must(c.AddNode(within(t), "node-3"))
	s.answers(c.Node("node-3"), near)

	t.Log("the cluster is stopped")
	c.Stop()
	if left, err := exec.Command("pgrep", "-f", c.Dir()).Output(); len(left) > 0 {
		t.Errorf("processes of the stopped cluster still run: %s(error of pgrep: %v)", left, err)
	}
}

// scene is a test with its cluster.
type scene struct {
	t       *testing.T
	cluster *realcluster.Cluster
	api     kubernetes.Interface
}

func (s *scene) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// runPod runs a test pod on a node and returns it when it is ready.
func (s *scene) runPod(name, node string) *corev1.Pod {
	s.t.Helper()
	_, err := s.api.CoreV1().Pods("default").Create(within(s.t), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName:   node,
			Containers: []corev1.Container{{Name: "web", Image: layout.WebImage, ImagePullPolicy: corev1.PullNever}},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	return s.awaitPod(name, func(*corev1.Pod) bool { return true })
}

// restarted waits until the pod is ready with a new container, after all containers died with the node.
func (s *scene) restarted(before *corev1.Pod) *corev1.Pod {
	s.t.Helper()
	return s.awaitPod(before.Name, func(p *corev1.Pod) bool {
		return p.Status.ContainerStatuses[0].ContainerID != before.Status.ContainerStatuses[0].ContainerID
	})
}

// awaitPod waits until a pod is ready and meets the condition.
func (s *scene) awaitPod(name string, condition func(*corev1.Pod) bool) *corev1.Pod {
	s.t.Helper()
	return s.awaitPodStatus(name, func(pod *corev1.Pod) bool {
		ready := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
		return ready && condition(pod)
	})
}

// awaitPodStatus waits until a pod meets the condition.
func (s *scene) awaitPodStatus(name string, condition func(*corev1.Pod) bool) *corev1.Pod {
	s.t.Helper()
	pod := &corev1.Pod{}
	var last error
	err := wait.PollUntilContextCancel(within(s.t), 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		now, err := s.api.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
		if last = err; err != nil {
			return false, nil
		}
		pod = now
		return condition(pod), nil
	})
	if err != nil {
		s.t.Fatalf("wait for pod %s: %v; last status: %+v", name, errors.Join(err, last), pod.Status)
	}
	return pod
}

// answers waits until the pod has answered a request from a node at each address of the pod. The first packets of a
// connection may be lost until the agents know the pod.
func (s *scene) answers(from *realcluster.Node, pod *corev1.Pod) {
	s.t.Helper()
	for _, ip := range pod.Status.PodIPs {
		var last error
		err := wait.PollUntilContextCancel(within(s.t), 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			var answer string
			if answer, last = from.Fetch(ctx, ip.IP); last != nil {
				return false, nil
			}
			var got struct {
				Hostname  string
				Addresses []string
			}
			if err := json.Unmarshal([]byte(answer), &got); err != nil {
				return false, fmt.Errorf("decode the answer %q: %w", answer, err)
			}
			if got.Hostname != pod.Name || !slices.Contains(got.Addresses, ip.IP) {
				return false, fmt.Errorf("got the answer %s from %s, want the answer of pod %s, which has this address", strings.TrimSpace(answer), ip.IP, pod.Name)
			}
			return true, nil
		})
		if err != nil {
			s.t.Fatalf("send a request to pod %s at %s from node %s: %v", pod.Name, ip.IP, from.Name, errors.Join(err, last))
		}
	}
}
