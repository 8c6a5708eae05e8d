// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Command fixedip-simnode is one simulated node: it simulates the kubelet, and runs the CRD allocator of Cilium
// (pkg/ipam) in place of the agent. Addresses are therefore allocated, refused, restored and reported by the same code
// as on a real node. If the allocator returns an error for a pod, the pod stays in ContainerCreating. The node runs no
// containers and supports no probes or readiness gates. One process is one node, because the node store of the
// allocator is a global variable.
package main

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	ciliumclient "github.com/cilium/cilium/pkg/k8s/client/clientset/versioned"

	"fixedip.io/fixedip/hack/cluster/startup"
	"fixedip.io/fixedip/hack/reconnect"
)

func main() {
	o := newOptions()
	startup.Main("fixedip-simnode", o, func(ctx context.Context) error {
		return run(klog.NewContext(ctx, klog.Background().WithValues("node", o.nodeName)), o)
	})
}

// clients are the Kubernetes and Cilium clients of a node.
type clients struct {
	kube   kubernetes.Interface
	cilium ciliumclient.Interface
}

func newClients(kubeconfig, nodeName string) (*clients, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %s: %w", kubeconfig, err)
	}
	cfg.QPS, cfg.Burst = 200, 400
	cfg = rest.AddUserAgent(cfg, "fixedip-simnode/"+nodeName)
	cfg.Wrap(reconnect.Transport)
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("create a Kubernetes client from %s: %w", kubeconfig, err)
	}
	cilium, err := ciliumclient.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("create a Cilium client from %s: %w", kubeconfig, err)
	}
	return &clients{kube: kube, cilium: cilium}, nil
}

// run starts the node in the order of a real node. It registers the Node as not ready, and starts the agent, which
// waits for its addresses. Then it starts the pods that are not on the host network, and reports the Node as ready.
// When the process ends, the pods are not stopped.
func run(ctx context.Context, o *options) error {
	c, err := newClients(o.kubeconfig, o.nodeName)
	if err != nil {
		return err
	}
	node := newNode(c.kube, o)
	node.register(ctx)
	kubelet := newKubelet(c, o)
	agent := newAgent(c, o)

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { node.keepLease(ctx); return nil })
	group.Go(func() error { return kubelet.run(ctx) })
	if o.debugAddress != "" {
		group.Go(func() error { return serveDebug(ctx, o.debugAddress, agent) })
	}
	group.Go(func() error {
		if err := kubelet.waitForPods(ctx); err != nil {
			return nil // stopped
		}
		var running []*corev1.Pod
		if !o.rebooted {
			running = kubelet.runningPods()
		}
		restored, err := agent.start(ctx, running)
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
		kubelet.attachNetwork(agent, restored)
		node.keepStatus(ctx)
		return nil
	})
	return group.Wait()
}
