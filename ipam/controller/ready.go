package controller

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

// watches tell whether all that stood at the start has been seen. Key: the plural name of the
// resource. Who does not lead
// watches as well, so that a failover costs no second list of everything.
type watches map[string]func() bool

// watchAll starts the watch of every kind that the controllers read, and makes readiness wait for
// all of them.
func watchAll(ctx context.Context, mgr manager.Manager, cfg Config) (watches, error) {
	w := watches{}
	kinds := []client.Object{&v1alpha1.FixedIP{}, &v1alpha1.NodeSubnet{}}
	for kind := range CacheOptions(cfg).ByObject {
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
		w[resource.Resource] = informer.HasSynced
	}
	if err := mgr.AddReadyzCheck("watches", w.check); err != nil {
		return nil, fmt.Errorf("add the readiness check: %w", err)
	}
	return w, nil
}

// check fails as long as a watch is behind, and names it.
func (w watches) check(*http.Request) error {
	var behind []string
	for resource, synced := range w.synced() {
		if !synced {
			behind = append(behind, resource)
		}
	}
	if len(behind) == 0 {
		return nil
	}
	slices.Sort(behind)
	return fmt.Errorf("not all objects have been seen yet: %s", strings.Join(behind, ", "))
}

func (w watches) synced() map[string]bool {
	all := map[string]bool{}
	for resource, synced := range w {
		all[resource] = synced()
	}
	return all
}
