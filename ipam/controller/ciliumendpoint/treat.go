// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ciliumendpoint

import (
	"context"
	"encoding/json"
	"fmt"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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
		metrics.EndpointReowned()
		return nil
	case endpoint.Stuck:
		if len(cep.Finalizers) == 0 {
			return nil
		}
		finalizers := cep.Finalizers
		err := k.patch(ctx, cep,
			operation{"test", "/metadata/uid", cep.UID},
			operation{"test", "/metadata/finalizers", finalizers},
			operation{Op: "remove", Path: "/metadata/finalizers"})
		if err != nil {
			return fmt.Errorf("remove the finalizers %v: %w", finalizers, err)
		}
		logger.Info("Finalizers of a stuck CiliumEndpoint removed", "uid", cep.UID, "finalizers", finalizers)
	default:
		err := k.Live.Delete(ctx, cep, client.Preconditions{UID: &cep.UID, ResourceVersion: &cep.ResourceVersion})
		if err != nil {
			return fmt.Errorf("delete it: %w", err)
		}
		logger.Info("CiliumEndpoint removed", "cause", i, "uid", cep.UID)
	}
	metrics.EndpointRemoved(string(i))
	if pod != nil {
		k.Events.Eventf(pod, nil, corev1.EventTypeNormal, "CiliumEndpointRemoved", "KeepEndpoints", "Its CiliumEndpoint was removed, so that its agent makes it again: %s", i)
	}
	return nil
}

type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

func (k *Keeper) patch(ctx context.Context, cep *ciliumv2.CiliumEndpoint, operations ...operation) error {
	data, err := json.Marshal(operations)
	if err != nil {
		return err
	}
	return k.Live.Patch(ctx, cep, client.RawPatch(types.JSONPatchType, data))
}

// reown puts the pod that runs into the owner reference.
func (k *Keeper) reown(ctx context.Context, cep *ciliumv2.CiliumEndpoint, pod *corev1.Pod) error {
	owners := make([]metav1.OwnerReference, len(cep.OwnerReferences))
	for i, o := range cep.OwnerReferences {
		o.UID = pod.UID
		owners[i] = o
	}
	err := k.patch(ctx, cep,
		operation{"test", "/metadata/uid", cep.UID},
		operation{"test", "/metadata/ownerReferences", cep.OwnerReferences},
		operation{"replace", "/metadata/ownerReferences", owners})
	if err != nil {
		return fmt.Errorf("set pod %s as its owner: %w", pod.UID, err)
	}
	return nil
}
