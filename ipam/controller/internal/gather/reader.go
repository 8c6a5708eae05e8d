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

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/core/identity"
)

// Reader reads the objects that a decision depends on.
type Reader struct {
	// Objects reads FixedIPs and pods.
	Objects client.Reader
	// Workload returns a workload, or nil if there is none. It returns workloads.ErrUnknown if that is not known.
	Workload func(ctx context.Context, gk schema.GroupKind, namespace, name string) (*identity.Workload, error)
	// cached is true if Objects has the indexes of package index.
	cached bool
}

// Workloads reads workloads: from their watches, and from the API server.
type Workloads interface {
	Get(gk schema.GroupKind, namespace, name string) (*identity.Workload, error)
	Live(ctx context.Context, gk schema.GroupKind, namespace, name string) (*identity.Workload, error)
}

// FromCaches returns a Reader of the caches.
func (g *Gatherer) FromCaches() Reader {
	get := func(_ context.Context, gk schema.GroupKind, namespace, name string) (*identity.Workload, error) {
		return g.Workloads.Get(gk, namespace, name)
	}
	return Reader{Objects: g.Cached, Workload: get, cached: true}
}

// FromAPIServer returns a Reader of the API server.
func (g *Gatherer) FromAPIServer() Reader {
	return Reader{Objects: g.Live, Workload: g.Workloads.Live}
}

// slots returns the FixedIPs of the slots of a workload, named as in pool entries within its namespace.
func (r Reader) slots(ctx context.Context, namespace, resource string) ([]v1alpha1.FixedIP, error) {
	opts := []client.ListOption{client.InNamespace(namespace)}
	if r.cached {
		opts = append(opts, index.OfWorkload(resource))
	}
	var list v1alpha1.FixedIPList
	if err := r.Objects.List(ctx, &list, opts...); err != nil {
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
