// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"runtime"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	"k8s.io/component-helpers/apimachinery/lease"
	nodeutil "k8s.io/component-helpers/node/util"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	// leaseSeconds is the kubelet's default lease duration.
	leaseSeconds = 40
	// statusReport is the interval at which an unchanged node status is written, as by the kubelet. More writes would only
	// cause events for all watchers of nodes.
	statusReport = 5 * time.Minute
	// registerRetry is the interval between attempts to register the Node.
	registerRetry = 500 * time.Millisecond
)

// node maintains the Node object: its registration, lease and status.
type node struct {
	client kubernetes.Interface
	opts   *options
}

func newNode(client kubernetes.Interface, o *options) *node {
	return &node{client: client, opts: o}
}

// register creates the Node as not ready, or takes over the Node of an earlier process. Like a kubelet it retries until
// it succeeds or ctx ends, and it registers once: a Node that is deleted later stays deleted until this process is
// restarted.
func (n *node) register(ctx context.Context) {
	// The wait ends only with success or with ctx.
	_ = wait.PollUntilContextCancel(ctx, registerRetry, true, func(ctx context.Context) (bool, error) {
		err := n.tryRegister(ctx)
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot register the Node, trying again")
		}
		return err == nil, nil
	})
}

func (n *node) tryRegister(ctx context.Context) error {
	want := n.desired()
	_, err := n.client.CoreV1().Nodes().Create(ctx, want, metav1.CreateOptions{})
	if err == nil {
		return nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("register node %s: %w", n.opts.nodeName, err)
	}
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		have, err := n.client.CoreV1().Nodes().Get(ctx, n.opts.nodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		updated := have.DeepCopy()
		if updated.Labels == nil {
			updated.Labels = map[string]string{}
		}
		for key, value := range want.Labels {
			updated.Labels[key] = value
		}
		if !equality.Semantic.DeepEqual(have.Labels, updated.Labels) {
			if updated, err = n.client.CoreV1().Nodes().Update(ctx, updated, metav1.UpdateOptions{}); err != nil {
				return err
			}
		}
		// The Ready condition is not changed: a restart of the kubelet does not make a node unready.
		updated.Status.Capacity, updated.Status.Allocatable = want.Status.Capacity, want.Status.Allocatable
		updated.Status.Addresses, updated.Status.NodeInfo = want.Status.Addresses, want.Status.NodeInfo
		if equality.Semantic.DeepEqual(have.Status, updated.Status) {
			return nil
		}
		_, err = n.client.CoreV1().Nodes().UpdateStatus(ctx, updated, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("take over node %s: %w", n.opts.nodeName, err)
	}
	return nil
}

// desired returns the Node as a kubelet registers it before its pod network is up.
func (n *node) desired() *corev1.Node {
	labels := map[string]string{
		corev1.LabelHostname:   n.opts.nodeName,
		corev1.LabelOSStable:   runtime.GOOS,
		corev1.LabelArchStable: runtime.GOARCH,
	}
	for key, value := range n.opts.labels {
		labels[key] = value
	}
	resources := corev1.ResourceList{
		corev1.ResourceCPU:              resource.MustParse("8"),
		corev1.ResourceMemory:           resource.MustParse("32Gi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("100Gi"),
		corev1.ResourcePods:             *resource.NewQuantity(n.opts.maxPods, resource.DecimalSI),
	}
	addresses := []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: n.opts.nodeName}}
	for _, ip := range n.opts.nodeIPs {
		addresses = append(addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
	}
	now := metav1.Now()
	condition := func(t corev1.NodeConditionType, s corev1.ConditionStatus, reason, message string) corev1.NodeCondition {
		return corev1.NodeCondition{Type: t, Status: s, Reason: reason, Message: message, LastHeartbeatTime: now, LastTransitionTime: now}
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.opts.nodeName, Labels: labels},
		Status: corev1.NodeStatus{
			Capacity:    resources,
			Allocatable: resources,
			Addresses:   addresses,
			NodeInfo: corev1.NodeSystemInfo{
				OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH, KubeletVersion: "v1.34.9", ContainerRuntimeVersion: "simnode://1",
			},
			Conditions: []corev1.NodeCondition{
				condition(corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
				condition(corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
				condition(corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
				condition(corev1.NodeReady, corev1.ConditionFalse, "KubeletNotReady", "container runtime network not ready: cni plugin not initialized"),
			},
		},
	}
}

// keepLease renews the node's lease until ctx ends, with the kubelet's own lease controller.
func (n *node) keepLease(ctx context.Context) {
	owner := func(l *coordinationv1.Lease) error {
		if len(l.OwnerReferences) > 0 {
			return nil
		}
		node, err := n.client.CoreV1().Nodes().Get(ctx, n.opts.nodeName, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("look up node %s for its lease: %w", n.opts.nodeName, err)
		}
		l.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}
		return nil
	}
	lease.NewController(clock.RealClock{}, n.client, n.opts.nodeName, leaseSeconds, nil, n.opts.leaseRenewal,
		n.opts.nodeName, corev1.NamespaceNodeLease, owner).Run(ctx)
}

// keepStatus keeps the condition Ready of the Node true until ctx ends, even if another program, such as the node lifecycle
// controller, changes it.
func (n *node) keepStatus(ctx context.Context) {
	logger := klog.FromContext(ctx)
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := n.reportReady(ctx); err != nil && ctx.Err() == nil {
			logger.Error(err, "Cannot report the node's status")
		}
	}, n.opts.leaseRenewal)
}

func (n *node) reportReady(ctx context.Context) error {
	// With resource version 0, the API server responds from its cache. Every node sends this request every few seconds.
	have, err := n.client.CoreV1().Nodes().Get(ctx, n.opts.nodeName, metav1.GetOptions{ResourceVersion: "0"})
	if apierrors.IsNotFound(err) {
		klog.FromContext(ctx).V(2).Info("The Node does not exist; like a kubelet, this node does not create it again")
		return nil
	}
	if err != nil {
		return fmt.Errorf("read node %s: %w", n.opts.nodeName, err)
	}
	_, ready := nodeutil.GetNodeCondition(&have.Status, corev1.NodeReady)
	if ready != nil && ready.Status == corev1.ConditionTrue && time.Since(ready.LastHeartbeatTime.Time) < statusReport {
		return nil
	}
	now := metav1.Now()
	updated := have.DeepCopy()
	for i := range updated.Status.Conditions {
		c := &updated.Status.Conditions[i]
		status, reason, message := corev1.ConditionFalse, "KubeletHasNoPressure", "kubelet has no pressure"
		if c.Type == corev1.NodeReady {
			status, reason, message = corev1.ConditionTrue, "KubeletReady", "kubelet is posting ready status"
		}
		if c.Status != status {
			c.LastTransitionTime = now
		}
		c.Status, c.Reason, c.Message, c.LastHeartbeatTime = status, reason, message, now
	}
	if _, _, err := nodeutil.PatchNodeStatus(n.client.CoreV1(), types.NodeName(n.opts.nodeName), have, updated); err != nil {
		return fmt.Errorf("patch the status of node %s: %w", n.opts.nodeName, err)
	}
	return nil
}
