// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package informers

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// Synced reports, per resource, whether the cache has every object that existed at the start. Key: the plural name of
// the resource. A replica that does not lead fills its caches as well, so that a failover costs no second list of
// everything.
type Synced map[string]func() bool

// Start starts the informer of FixedIPs and of every kind in o, and makes readiness wait for all of them.
func Start(ctx context.Context, mgr manager.Manager, o cache.Options) (Synced, error) {
	s := Synced{}
	kinds := []client.Object{&v1alpha1.FixedIP{}, &v1alpha1.NodeSubnet{}}
	for kind := range o.ByObject {
		kinds = append(kinds, kind)
	}
	for _, kind := range kinds {
		gvk, err := mgr.GetClient().GroupVersionKindFor(kind)
		if err != nil {
			return nil, fmt.Errorf("find the kind of %T: %w", kind, err)
		}
		// BlockUntilSynced false: the cache is not started yet.
		informer, err := mgr.GetCache().GetInformer(ctx, kind, cache.BlockUntilSynced(false))
		if err != nil {
			return nil, fmt.Errorf("watch %ss: %w", gvk.Kind, err)
		}
		resource, _ := meta.UnsafeGuessKindToResource(gvk)
		s[resource.Resource] = informer.HasSynced
	}
	if err := mgr.AddReadyzCheck("watches", s.check); err != nil {
		return nil, fmt.Errorf("add the readiness check: %w", err)
	}
	return s, nil
}

// check returns an error that names the informers that are not synced.
func (s Synced) check(*http.Request) error {
	var behind []string
	for resource, synced := range s.States() {
		if !synced {
			behind = append(behind, resource)
		}
	}
	if len(behind) == 0 {
		return nil
	}
	slices.Sort(behind)
	return fmt.Errorf("informers not synced yet: %s", strings.Join(behind, ", "))
}

// States returns whether each informer is synced. Key: the plural name of the resource.
func (s Synced) States() map[string]bool {
	all := map[string]bool{}
	for resource, synced := range s {
		all[resource] = synced()
	}
	return all
}
