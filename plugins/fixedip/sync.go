// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"context"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// newMapper knows the resources of the two kinds that the plugin reads. To find them out from the
// API server would make a start fail where it can't be reached, or where a CRD is not installed
// yet: a watch, once it is begun, gets over both.
func newMapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper([]schema.GroupVersion{ciliumv2.SchemeGroupVersion, v1alpha1.GroupVersion})
	m.Add(ciliumv2.SchemeGroupVersion.WithKind(ciliumv2.CNKindDefinition), meta.RESTScopeRoot)
	m.Add(v1alpha1.GroupVersion.WithKind("FixedIP"), meta.RESTScopeNamespace)
	return m
}

// joinSync makes the scheduler wait for the world as it waits for its own informers: until all that
// stood at the start has been seen it is not ready (sched-handler-sync of /readyz), and does not try
// for the lease. /readyz takes no checks from plugins; the informers of the shared factory are what
// it goes by, and the factory takes informers of other clients.
func (w *world) joinSync(f informers.SharedInformerFactory) {
	f.InformerFor(&v1alpha1.FixedIP{}, func(kubernetes.Interface, time.Duration) toolscache.SharedIndexInformer {
		return &joined{
			SharedIndexInformer: toolscache.NewSharedIndexInformer(&toolscache.ListWatch{}, &v1alpha1.FixedIP{}, 0, nil),
			synced:              w.ready,
		}
	})
}

// joined stands for the world's watches in a factory that starts informers and waits for them. The
// watches run already, and nobody reads from it: what is embedded stays empty and never runs.
type joined struct {
	toolscache.SharedIndexInformer
	synced toolscache.InformerSynced
}

// HasSynced tells whether the world is ready.
func (j *joined) HasSynced() bool { return j.synced() }

// Run does nothing until the end.
func (j *joined) Run(stop <-chan struct{}) { <-stop }

// RunWithContext does nothing until the end.
func (j *joined) RunWithContext(ctx context.Context) { <-ctx.Done() }
