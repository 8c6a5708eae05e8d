// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ciliumendpoint

import (
	"context"
	"fmt"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/core/endpoint"
)

// treat does what helps. It writes or deletes exactly the version that was read.
func (k *Keeper) treat(ctx context.Context, i endpoint.Issue, cep *ciliumv2.CiliumEndpoint, pod *corev1.Pod) error {
	logger := klog.FromContext(ctx)
	switch i {
	case endpoint.MisOwned:
		if err := k.reown(ctx, cep, pod); err != nil {
			return err
		}
		logger.Info("Owner reference of the CiliumEndpoint corrected", "uid", cep.UID)
		metrics.EndpointsReowned.Inc()
		return nil
	case endpoint.Stuck:
		if len(cep.Finalizers) == 0 {
			return nil
		}
		after := cep.DeepCopy()
		after.Finalizers = nil
		if err := k.patch(ctx, cep, after); err != nil {
			return fmt.Errorf("remove the finalizers %v: %w", cep.Finalizers, err)
		}
		logger.Info("Finalizers of a stuck CiliumEndpoint removed", "uid", cep.UID, "finalizers", cep.Finalizers)
	default:
		err := k.Live.Delete(ctx, cep, client.Preconditions{UID: &cep.UID, ResourceVersion: &cep.ResourceVersion})
		if err != nil {
			return fmt.Errorf("delete it: %w", err)
		}
		logger.Info("CiliumEndpoint removed", "cause", i, "uid", cep.UID)
	}
	metrics.EndpointsRemoved.WithLabelValues(string(i)).Inc()
	if pod != nil {
		k.Events.Eventf(pod, nil, corev1.EventTypeNormal, "CiliumEndpointRemoved", "KeepEndpoints", "Its CiliumEndpoint was removed, so that its agent makes it again: %s", i)
	}
	return nil
}

// patch writes the difference between before and after. It fails with a conflict if the object has changed since before
// was read.
func (k *Keeper) patch(ctx context.Context, before, after *ciliumv2.CiliumEndpoint) error {
	return k.Live.Patch(ctx, after, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

// reown puts the pod that runs into the owner reference.
func (k *Keeper) reown(ctx context.Context, cep *ciliumv2.CiliumEndpoint, pod *corev1.Pod) error {
	after := cep.DeepCopy()
	for i := range after.OwnerReferences {
		after.OwnerReferences[i].UID = pod.UID
	}
	if err := k.patch(ctx, cep, after); err != nil {
		return fmt.Errorf("set pod %s as its owner: %w", pod.UID, err)
	}
	return nil
}
