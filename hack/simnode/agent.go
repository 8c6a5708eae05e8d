// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/cilium/cilium/pkg/ipam"
	ipamoption "github.com/cilium/cilium/pkg/ipam/option"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	k8sclient "github.com/cilium/cilium/pkg/k8s/client"
	ciliumclient "github.com/cilium/cilium/pkg/k8s/client/clientset/versioned"
	typedciliumv2 "github.com/cilium/cilium/pkg/k8s/client/clientset/versioned/typed/cilium.io/v2"
	"github.com/cilium/cilium/pkg/node/addressing"
	nodetypes "github.com/cilium/cilium/pkg/node/types"
	"github.com/cilium/cilium/pkg/option"
	ciliumtime "github.com/cilium/cilium/pkg/time"
)

const (
	ownerRouter = "router"
	ownerHealth = "health"
	// restoredSuffix is the text that the agent appends to the owner of an address that it restored
	// (daemon/cmd/endpoint_restore.go, allocateIPsLocked).
	restoredSuffix = " [restored]"
)

// agent implements the part of cilium-agent that concerns addresses. It creates the CiliumNode, runs the allocator of
// Cilium on its pool, allocates the addresses of the node and restores those of running pods.
type agent struct {
	kube   kubernetes.Interface
	cilium ciliumclient.Interface
	opts   *options
	ipam   *ipam.IPAM
	// registered receives the result of UpdateCiliumNodeResource, which returns no error to the allocator.
	registered chan error
	// ctx is the context of start. UpdateCiliumNodeResource uses it, because the allocator passes no context.
	ctx context.Context
}

func newAgent(c *clients, o *options) *agent {
	nodetypes.SetName(o.nodeName)
	a := &agent{kube: c.kube, cilium: c.cilium, opts: o, registered: make(chan error, 1)}
	// PoolDefault reads the name of the pool from the global configuration of Cilium, whose default is "default".
	a.ipam = ipam.NewIPAM(ipam.NewIPAMParams{
		Logger: slog.New(logr.ToSlogHandler(klog.Background().WithName("ipam"))),
		AgentConfig: &option.DaemonConfig{
			IPAM:                     ipamoption.IPAMCRD,
			EnableIPv4:               o.ipv4,
			EnableIPv6:               o.ipv6,
			EnableHealthChecking:     true,
			IPAMCiliumNodeUpdateRate: o.updateRate,
		},
		NodeDiscovery: a,
		K8sEventReg:   noEvents{},
		Clientset:     ciliumOnly{cilium: c.cilium},
		Metadata:      defaultPool{},
	})
	return a
}

// ciliumOnly is a clientset with only the part that the CRD allocator uses.
type ciliumOnly struct {
	k8sclient.Clientset
	cilium ciliumclient.Interface
}

func (c ciliumOnly) CiliumV2() typedciliumv2.CiliumV2Interface { return c.cilium.CiliumV2() }

// noEvents discards the event metrics of the agent.
type noEvents struct{}

func (noEvents) K8sEventReceived(string, string, string, bool, bool) {}
func (noEvents) K8sEventProcessed(string, string, bool)              {}

// defaultPool makes every pod use the default pool; the CRD allocator has no other.
type defaultPool struct{}

func (defaultPool) GetIPPoolForPod(string, ipam.Family) (string, error) {
	return string(ipam.PoolDefault()), nil
}

// start starts the agent and returns the restored pods. It waits until the pool has enough entries for the node,
// restores the addresses of running pods, and allocates the addresses of the node. If ctx ends first, it returns no
// error.
func (a *agent) start(ctx context.Context, running []*corev1.Pod) ([]restoredPod, error) {
	a.ctx = ctx
	configured := make(chan struct{})
	go func() {
		defer close(configured)
		// The allocator polls for a filled pool every 5 s with Sleep of Cilium's package time. MaxInternalTimerDelay limits
		// that Sleep. The limit is removed afterwards, because the same Sleep implements the update rate.
		ciliumtime.MaxInternalTimerDelay = a.opts.poolPoll
		a.ipam.ConfigureAllocator()
		ciliumtime.MaxInternalTimerDelay = 0
	}()
	select {
	case err := <-a.registered:
		if err != nil {
			return nil, err
		}
	case <-ctx.Done():
		return nil, nil
	}
	// ConfigureAllocator cannot be interrupted; it ends with the process.
	select {
	case <-configured:
	case <-ctx.Done():
		return nil, nil
	}
	restored := a.restore(ctx, running)
	if err := a.takeNodeAddresses(ctx); err != nil {
		return nil, err
	}
	a.ipam.RestoreFinished()
	return restored, nil
}

// UpdateCiliumNodeResource creates or updates the CiliumNode; the allocator calls it once at its start.
func (a *agent) UpdateCiliumNodeResource() {
	a.registered <- a.updateCiliumNode(a.ctx, nil)
}

// updateCiliumNode writes the agent's fields of the CiliumNode (mutateNodeResource): owner, labels and addresses, but
// not the pool and the subnets. Like the agent it gives up after the tenth attempt, and the process exits (Cilium
// fact 10).
func (a *agent) updateCiliumNode(ctx context.Context, own []ownAddress) error {
	var last error
	backoff := wait.Backoff{Duration: 500 * time.Millisecond, Factor: 1, Steps: 10}
	err := wait.ExponentialBackoffWithContext(ctx, backoff, func(ctx context.Context) (bool, error) {
		last = a.tryUpdateCiliumNode(ctx, own)
		if last != nil {
			klog.FromContext(ctx).Info("Cannot write the CiliumNode, trying again", "err", last)
		}
		return last == nil, nil
	})
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("could not create or update CiliumNode %s: %w", a.opts.nodeName, last)
	}
	return nil
}

func (a *agent) tryUpdateCiliumNode(ctx context.Context, own []ownAddress) error {
	node, err := a.kube.CoreV1().Nodes().Get(ctx, a.opts.nodeName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read node %s: %w", a.opts.nodeName, err)
	}
	client := a.cilium.CiliumV2().CiliumNodes()
	cn, err := client.Get(ctx, a.opts.nodeName, metav1.GetOptions{})
	switch {
	case err == nil:
		a.describe(cn, node, own)
		_, err = client.Update(ctx, cn, metav1.UpdateOptions{})
	case apierrors.IsNotFound(err):
		cn = &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: a.opts.nodeName}}
		a.describe(cn, node, own)
		_, err = client.Create(ctx, cn, metav1.CreateOptions{})
	}
	return err
}

// describe sets the agent's fields of the CiliumNode. own contains the addresses of the node itself; nil if the agent has
// not allocated them yet. In this case the router addresses of an earlier run stay, so that the agent can allocate them
// again.
func (a *agent) describe(cn *ciliumv2.CiliumNode, node *corev1.Node, own []ownAddress) {
	cn.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}
	cn.Labels = node.Labels
	cn.Spec.Addresses = slices.DeleteFunc(cn.Spec.Addresses, func(have ciliumv2.NodeAddress) bool {
		return have.Type != addressing.NodeCiliumInternalIP || own != nil
	})
	for _, ip := range a.opts.nodeIPs {
		cn.Spec.Addresses = append(cn.Spec.Addresses, ciliumv2.NodeAddress{Type: addressing.NodeInternalIP, IP: ip})
	}
	for _, addr := range own {
		switch {
		case addr.owner == ownerRouter:
			cn.Spec.Addresses = append(cn.Spec.Addresses, ciliumv2.NodeAddress{Type: addressing.NodeCiliumInternalIP, IP: addr.ip.String()})
		case addr.ip.To4() != nil:
			cn.Spec.HealthAddressing.IPv4 = addr.ip.String()
		default:
			cn.Spec.HealthAddressing.IPv6 = addr.ip.String()
		}
	}
}

// ownAddress is an address of the node itself.
type ownAddress struct {
	owner string
	ip    net.IP
}

// families returns the families in which the agent allocates addresses.
func (a *agent) families() []ipam.Family {
	var f []ipam.Family
	if a.opts.ipv4 {
		f = append(f, ipam.IPv4)
	}
	if a.opts.ipv6 {
		f = append(f, ipam.IPv6)
	}
	return f
}

// takeNodeAddresses allocates the router and health addresses of the node (Cilium fact 6), if possible those of an earlier
// run, and publishes them. If it gets no address, it retries until ctx ends. A real agent exits instead and is restarted.
func (a *agent) takeNodeAddresses(ctx context.Context) error {
	var cn *ciliumv2.CiliumNode
	err := wait.PollUntilContextCancel(ctx, a.opts.sandboxRetry, true, func(ctx context.Context) (bool, error) {
		var err error
		if cn, err = a.cilium.CiliumV2().CiliumNodes().Get(ctx, a.opts.nodeName, metav1.GetOptions{}); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot read the node's earlier addresses, trying again")
		}
		return err == nil, nil
	})
	if err != nil {
		return nil // stopped
	}
	var own []ownAddress
	for _, family := range a.families() {
		for _, owner := range []string{ownerRouter, ownerHealth} {
			ip, err := a.takeNodeAddress(ctx, family, owner, earlierAddresses(cn, family, owner))
			if err != nil {
				return nil // stopped
			}
			own = append(own, ownAddress{owner: owner, ip: ip})
		}
	}
	return a.updateCiliumNode(ctx, own)
}

// takeNodeAddress allocates the first of the earlier addresses that can be allocated, or else the next free address.
// It returns an error only if ctx ends.
func (a *agent) takeNodeAddress(ctx context.Context, family ipam.Family, owner string, earlier []net.IP) (net.IP, error) {
	logger := klog.FromContext(ctx)
	for _, ip := range earlier {
		_, err := a.ipam.AllocateIPWithoutSyncUpstream(ip, owner, ipam.PoolDefault())
		if err == nil {
			return ip, nil
		}
		logger.Info("Cannot restore an address of the node", "owner", owner, "ip", ip, "err", err)
	}
	var got net.IP
	err := wait.PollUntilContextCancel(ctx, a.opts.sandboxRetry, true, func(context.Context) (bool, error) {
		result, err := a.ipam.AllocateNextFamilyWithoutSyncUpstream(family, owner, ipam.PoolDefault())
		if err != nil {
			logger.Error(err, "Cannot get an address for the node, trying again", "owner", owner, "family", family)
			return false, nil
		}
		got = result.IP
		return true, nil
	})
	return got, err
}

// earlierAddresses returns the addresses that the node had for an owner before a restart: first the published addresses,
// then those that are reported as used, which may be older (Cilium fact 4).
func earlierAddresses(cn *ciliumv2.CiliumNode, family ipam.Family, owner string) []net.IP {
	var candidates []string
	if owner == ownerRouter {
		for _, addr := range cn.Spec.Addresses {
			if addr.Type == addressing.NodeCiliumInternalIP {
				candidates = append(candidates, addr.IP)
			}
		}
	} else {
		candidates = append(candidates, cn.Spec.HealthAddressing.IPv4, cn.Spec.HealthAddressing.IPv6)
	}
	for ip, used := range cn.Status.IPAM.Used {
		if used.Owner == owner && !slices.Contains(candidates, ip) {
			candidates = append(candidates, ip)
		}
	}
	var ips []net.IP
	for _, s := range candidates {
		if ip := net.ParseIP(s); ip != nil && ipam.DeriveFamily(ip) == family {
			ips = append(ips, ip)
		}
	}
	return ips
}

// restoredPod is a pod that ran before the process started. held contains the addresses that the allocator restored. The pod
// keeps its other addresses, but they are not allocated in the allocator.
type restoredPod struct {
	pod  *corev1.Pod
	held []net.IP
}

// restore restores the addresses of running pods. An address without an entry in the pool cannot be restored (Cilium
// fact 7).
func (a *agent) restore(ctx context.Context, running []*corev1.Pod) []restoredPod {
	logger := klog.FromContext(ctx)
	var list []restoredPod
	for _, pod := range running {
		owner := pod.Namespace + "/" + pod.Name
		r := restoredPod{pod: pod}
		for _, ip := range podAddresses(pod) {
			if _, err := a.ipam.AllocateIPWithoutSyncUpstream(ip, owner+restoredSuffix, ipam.PoolDefault()); err != nil {
				logger.Error(err, "Cannot restore the address of a running pod", "pod", owner, "ip", ip)
				continue
			}
			r.held = append(r.held, ip)
		}
		list = append(list, r)
	}
	return list
}

// add allocates the addresses of a CNI ADD: one address per family, for the owner that the CNI plugin passes.
func (a *agent) add(namespace, name string) ([]net.IP, error) {
	v4, v6, err := a.ipam.AllocateNext("", namespace+"/"+name, ipam.PoolDefault())
	if err != nil {
		return nil, err
	}
	var ips []net.IP
	for _, result := range []*ipam.AllocationResult{v4, v6} {
		if result != nil {
			ips = append(ips, result.IP)
		}
	}
	return ips, nil
}

// del releases the addresses of a CNI DEL. Like the agent it does not compare owners: a late DEL of an old sandbox releases
// the address even if a newer sandbox of the same pod name uses it (Cilium fact 13).
func (a *agent) del(ctx context.Context, ips []net.IP) {
	for _, ip := range ips {
		if err := a.ipam.ReleaseIP(ip, ipam.PoolDefault()); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot release an address", "ip", ip)
		}
	}
}

// podAddresses returns the addresses in the pod's status.
func podAddresses(pod *corev1.Pod) []net.IP {
	var ips []net.IP
	for _, p := range pod.Status.PodIPs {
		if ip := net.ParseIP(p.IP); ip != nil {
			ips = append(ips, ip)
		}
	}
	return ips
}
