// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package poolguard

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/core/address"
)

const (
	// Name is the name of the ConfigMap, in the namespace of the controller. The policy fixedips.fixedip.io names it.
	Name = "fixedip-cluster-pools"
	// key is the key of the CIDRs, a list that is separated by commas.
	key = "pools"
	// everything allows each address. It is the value if Kubernetes assigns the subnets, because the controller does not know
	// from which CIDRs Kubernetes takes them.
	everything = "0.0.0.0/0,::/0"
	// interval is the time between two calls of Sync. A change of the CIDRs by another client is undone within this time.
	interval = time.Minute
)

// Guard keeps the ConfigMap equal to the cluster pools. It implements manager.Runnable.
type Guard struct {
	// API reads from and writes to the API server.
	API       client.Client
	Namespace string
	// ClusterPools are the cluster pools; empty if Kubernetes assigns the subnets.
	ClusterPools []address.ClusterPool
}

// NeedLeaderElection returns true: only the active controller writes.
func (g *Guard) NeedLeaderElection() bool { return true }

// Start calls Sync at once, and again after each interval until ctx ends. If Sync fails, Start logs the error, unless the
// call before failed with the same error. Without the ConfigMap, the policy refuses nothing.
func (g *Guard) Start(ctx context.Context) error {
	logger := klog.FromContext(ctx).WithName("poolguard")
	last := ""
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		err := g.Sync(ctx)
		if err == nil {
			last = ""
			return
		}
		if text := err.Error(); text != last {
			last = text
			logger.Error(err, "Failed to write the cluster pools for the admission policy of FixedIPs; retrying", "every", interval)
		}
	}, interval)
	return nil
}

// Sync writes the CIDRs if the ConfigMap differs. Each write has a precondition. Sync returns nil if another client was faster.
func (g *Guard) Sync(ctx context.Context) error {
	want := cidrs(g.ClusterPools)
	var cm corev1.ConfigMap
	err := g.API.Get(ctx, client.ObjectKey{Namespace: g.Namespace, Name: Name}, &cm)
	switch {
	case apierrors.IsNotFound(err):
		cm.ObjectMeta = metav1.ObjectMeta{Namespace: g.Namespace, Name: Name, Labels: map[string]string{"app.kubernetes.io/part-of": "fixedip"}}
		cm.Data = map[string]string{key: want}
		if err := g.API.Create(ctx, &cm); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create ConfigMap %s/%s: %w", g.Namespace, Name, err)
		}
		return nil
	case err != nil:
		return fmt.Errorf("read ConfigMap %s/%s: %w", g.Namespace, Name, err)
	case cm.Data[key] == want:
		return nil
	}
	if cm.Data == nil {
		cm.Data = map[string]string{}
	}
	cm.Data[key] = want
	// Update carries the resourceVersion that was read.
	switch err := g.API.Update(ctx, &cm); {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("update ConfigMap %s/%s: %w", g.Namespace, Name, err)
	}
	klog.FromContext(ctx).Info("Cluster pools written for the admission policy of FixedIPs", "configMap", klog.KObj(&cm), "pools", want)
	return nil
}

// cidrs returns the value of the ConfigMap.
func cidrs(pools []address.ClusterPool) string {
	if len(pools) == 0 {
		return everything
	}
	var texts []string
	for _, p := range pools {
		texts = append(texts, p.CIDR.String())
	}
	return strings.Join(texts, ",")
}
