// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package gather collects what is known of an identity into a reclaim.State: from the caches, from the API server, or
// from a reader that a controller made for one look.
//
// It only reads. Pools always come from the ledger: a writer tests what was decided from.
package gather

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/core/identity"
)

// Reader reads the objects that a decision depends on. Objects that do not exist are nil.
type Reader interface {
	FixedIP(ctx context.Context, key types.NamespacedName) (*v1alpha1.FixedIP, error)
	Pod(ctx context.Context, key types.NamespacedName) (*corev1.Pod, error)
	// Workload returns workloads.ErrUnknown if it is not known whether the workload exists.
	Workload(ctx context.Context, gk schema.GroupKind, namespace, name string) (*identity.Workload, error)
	// Slots returns the FixedIPs of the slots of a workload, named as in pool entries.
	Slots(ctx context.Context, namespace, resource string) ([]v1alpha1.FixedIP, error)
}

// Workloads knows workloads: from their watches, and at the API server.
type Workloads interface {
	Get(gk schema.GroupKind, namespace, name string) (*identity.Workload, error)
	Live(ctx context.Context, gk schema.GroupKind, namespace, name string) (*identity.Workload, error)
}

// Cached reads from the caches.
type Cached struct {
	API       client.Reader
	Workloads Workloads
}

// FixedIP returns a FixedIP.
func (r Cached) FixedIP(ctx context.Context, key types.NamespacedName) (*v1alpha1.FixedIP, error) {
	return index.Get[v1alpha1.FixedIP](ctx, r.API, key)
}

// Pod returns a pod.
func (r Cached) Pod(ctx context.Context, key types.NamespacedName) (*corev1.Pod, error) {
	return index.Get[corev1.Pod](ctx, r.API, key)
}

// Workload returns a workload.
func (r Cached) Workload(_ context.Context, gk schema.GroupKind, namespace, name string) (*identity.Workload, error) {
	return r.Workloads.Get(gk, namespace, name)
}

// Slots returns the FixedIPs of the slots of a workload.
func (r Cached) Slots(ctx context.Context, namespace, resource string) ([]v1alpha1.FixedIP, error) {
	return slots(ctx, r.API, namespace, resource, index.OfWorkload(resource))
}

// Live reads from the API server.
type Live struct {
	API       client.Reader
	Workloads Workloads
}

// FixedIP returns a FixedIP.
func (r Live) FixedIP(ctx context.Context, key types.NamespacedName) (*v1alpha1.FixedIP, error) {
	return index.Get[v1alpha1.FixedIP](ctx, r.API, key)
}

// Pod returns a pod.
func (r Live) Pod(ctx context.Context, key types.NamespacedName) (*corev1.Pod, error) {
	return index.Get[corev1.Pod](ctx, r.API, key)
}

// Workload returns a workload.
func (r Live) Workload(ctx context.Context, gk schema.GroupKind, namespace, name string) (*identity.Workload, error) {
	return r.Workloads.Live(ctx, gk, namespace, name)
}

// Slots returns the FixedIPs of the slots of a workload.
func (r Live) Slots(ctx context.Context, namespace, resource string) ([]v1alpha1.FixedIP, error) {
	return slots(ctx, r.API, namespace, resource)
}

// slots picks the FixedIPs of a workload's slots out of a list.
func slots(ctx context.Context, api client.Reader, namespace, resource string, opts ...client.ListOption) ([]v1alpha1.FixedIP, error) {
	var list v1alpha1.FixedIPList
	if err := api.List(ctx, &list, append(opts, client.InNamespace(namespace))...); err != nil {
		return nil, fmt.Errorf("list the FixedIPs of %s: %w", resource, err)
	}
	var found []v1alpha1.FixedIP
	for _, record := range list.Items {
		if record.Spec.Slot && identity.OwnerOf(&record).Resource(namespace) == resource {
			found = append(found, record)
		}
	}
	return found, nil
}
