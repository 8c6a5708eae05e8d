// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	restclient "k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/request"
	"fixedip.io/fixedip/ipam/store/workloads"
	"fixedip.io/fixedip/plugins/fixedip/metrics"
	"fixedip.io/fixedip/plugins/fixedip/requeue"
)

// followWorkloads starts the watches of workloads, which end with ctx. The scheduler already has the watches of
// StatefulSets and ReplicaSets.
func (c *Cache) followWorkloads(ctx context.Context, cfg *restclient.Config, shared informers.SharedInformerFactory) error {
	web, err := restclient.HTTPClientFor(cfg)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	api, err := dynamic.NewForConfigAndClient(cfg, web)
	if err != nil {
		return fmt.Errorf("make a client of workloads: %w", err)
	}
	mapper, err := apiutil.NewDynamicRESTMapper(cfg, web)
	if err != nil {
		return fmt.Errorf("make a mapper of workloads: %w", err)
	}
	var watched []schema.GroupKind
	for _, k := range c.Kinds.All() {
		watched = append(watched, k.GroupKind())
	}
	c.Workloads = workloads.New(api, mapper, watched...)
	c.Workloads.AddHandler(c.workloadChanged)
	apps := shared.Apps().V1()
	if err := c.Workloads.UseInformer(identity.StatefulSets, apps.StatefulSets().Informer()); err != nil {
		return err
	}
	if c.Kinds.Slots() {
		if err := c.Workloads.UseInformer(identity.ReplicaSets, apps.ReplicaSets().Informer()); err != nil {
			return err
		}
	}
	go func() {
		if err := c.Workloads.Start(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "The watches of workloads ended")
		}
	}()
	return nil
}

// workloadChanged makes an event of a workload that appears, or that changes what its pods may have.
func (c *Cache) workloadChanged(before, after *identity.Workload) {
	if after == nil {
		return
	}
	if before == nil || request.Relevant(*before, *after) || identity.OptsOut(before.Template) != identity.OptsOut(after.Template) || failover(before) != failover(after) {
		c.Notify(requeue.Event{Keys: requeue.Keys(metrics.Workload, after.Resource())})
	}
}

// failover returns what the annotations of a workload say about failover, an error as well.
func failover(w *identity.Workload) string {
	policy, err := identity.Failover(w.Annotations, w.Template)
	if err != nil {
		return err.Error()
	}
	return string(policy)
}
