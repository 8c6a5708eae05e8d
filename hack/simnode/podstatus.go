// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

// The functions below change a copy of the current status of the pod, so that a repeated write changes nothing and the
// conditions of other components stay.

// runningStatus returns the status of a pod whose containers run.
func runningStatus(pod *corev1.Pod, box *sandbox, nodeIPs []string) corev1.PodStatus {
	s := baseStatus(pod, nodeIPs)
	s.Phase = corev1.PodRunning
	if s.StartTime == nil {
		s.StartTime = &box.started
	}
	s.PodIPs = nil
	for _, ip := range box.ips {
		s.PodIPs = append(s.PodIPs, corev1.PodIP{IP: ip.String()})
	}
	s.PodIP = s.PodIPs[0].IP
	setCondition(pod, &s, corev1.PodReadyToStartContainers, true, "")
	setCondition(pod, &s, corev1.PodInitialized, true, "")
	setCondition(pod, &s, corev1.ContainersReady, true, "")
	setCondition(pod, &s, corev1.PodReady, true, "")
	s.InitContainerStatuses = containerStatuses(pod.Spec.InitContainers, false, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		Reason: "Completed", StartedAt: box.started, FinishedAt: box.started,
	}})
	s.ContainerStatuses = containerStatuses(pod.Spec.Containers, true, corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: box.started}})
	return s
}

// waitingStatus returns the status of a pod without a sandbox.
func waitingStatus(pod *corev1.Pod, nodeIPs []string) corev1.PodStatus {
	s := baseStatus(pod, nodeIPs)
	s.Phase = corev1.PodPending
	if s.StartTime == nil {
		now := metav1.Now()
		s.StartTime = &now
	}
	setCondition(pod, &s, corev1.PodReadyToStartContainers, false, "")
	setCondition(pod, &s, corev1.PodInitialized, len(pod.Spec.InitContainers) == 0, "ContainersNotInitialized")
	setCondition(pod, &s, corev1.ContainersReady, false, "ContainersNotReady")
	setCondition(pod, &s, corev1.PodReady, false, "ContainersNotReady")
	s.InitContainerStatuses = containerStatuses(pod.Spec.InitContainers, false, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}})
	s.ContainerStatuses = containerStatuses(pod.Spec.Containers, false, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}})
	return s
}

// endedStatus returns the status of a pod whose containers were stopped. As with a kubelet, a pod that never started
// gets the phase Failed. The addresses stay in the status, as on a real node: the status of a terminating pod does not
// show whether the pod still has its addresses.
func endedStatus(pod *corev1.Pod) corev1.PodStatus {
	s := *pod.Status.DeepCopy()
	s.ObservedGeneration = pod.Generation
	// The status of a pod that has ended does not change, so that a second call returns the same status.
	if s.Phase == corev1.PodSucceeded || s.Phase == corev1.PodFailed {
		return s
	}
	s.Phase = corev1.PodSucceeded
	setCondition(pod, &s, corev1.PodReadyToStartContainers, false, "")
	setCondition(pod, &s, corev1.ContainersReady, false, "PodCompleted")
	setCondition(pod, &s, corev1.PodReady, false, "PodCompleted")
	if len(s.ContainerStatuses) == 0 {
		s.Phase = corev1.PodFailed
	}
	now := metav1.Now()
	for i := range s.ContainerStatuses {
		c := &s.ContainerStatuses[i]
		ended := &corev1.ContainerStateTerminated{Reason: "Completed", FinishedAt: now}
		if c.State.Running != nil {
			ended.StartedAt = c.State.Running.StartedAt
		} else {
			s.Phase = corev1.PodFailed
			ended.Reason, ended.ExitCode = "ContainerStatusUnknown", 137
		}
		c.Ready, c.Started, c.State = false, new(bool), corev1.ContainerState{Terminated: ended}
	}
	return s
}

// baseStatus returns the common part of all statuses of a pod on this node.
func baseStatus(pod *corev1.Pod, nodeIPs []string) corev1.PodStatus {
	s := *pod.Status.DeepCopy()
	s.ObservedGeneration = pod.Generation
	s.HostIP, s.HostIPs = nodeIPs[0], nil
	for _, ip := range nodeIPs {
		s.HostIPs = append(s.HostIPs, corev1.HostIP{IP: ip})
	}
	// The binding sets this condition; for a pod that was created with a node name, the kubelet sets it.
	setCondition(pod, &s, corev1.PodScheduled, true, "")
	return s
}

// setCondition sets a condition to true or false. reason is used only for a false condition.
func setCondition(pod *corev1.Pod, s *corev1.PodStatus, t corev1.PodConditionType, is bool, reason string) {
	c := &corev1.PodCondition{Type: t, Status: corev1.ConditionTrue, ObservedGeneration: pod.Generation}
	if !is {
		c.Status, c.Reason = corev1.ConditionFalse, reason
	}
	podutil.UpdatePodCondition(s, c)
}

// startedAt returns the time at which the pod's containers started according to its status, or the current time.
func startedAt(pod *corev1.Pod) metav1.Time {
	for _, c := range pod.Status.ContainerStatuses {
		if c.State.Running != nil {
			return c.State.Running.StartedAt
		}
	}
	return metav1.Now()
}

func containerStatuses(containers []corev1.Container, ready bool, state corev1.ContainerState) []corev1.ContainerStatus {
	var list []corev1.ContainerStatus
	for _, c := range containers {
		list = append(list, corev1.ContainerStatus{
			Name: c.Name, Image: c.Image, ImageID: c.Image, Ready: ready, Started: &ready, State: state,
		})
	}
	return list
}
