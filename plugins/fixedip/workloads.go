// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	restclient "k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/request"
	"fixedip.io/fixedip/ipam/store/workloads"
)

// newWorkloads makes the store of the workloads, which watches nothing yet.
func newWorkloads(cfg *restclient.Config, kinds identity.Kinds) (*workloads.Store, error) {
	web, err := restclient.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	api, err := dynamic.NewForConfigAndClient(cfg, web)
	if err != nil {
		return nil, fmt.Errorf("make a client of workloads: %w", err)
	}
	mapper, err := apiutil.NewDynamicRESTMapper(cfg, web)
	if err != nil {
		return nil, fmt.Errorf("make a mapper of workloads: %w", err)
	}
	var watched []schema.GroupKind
	for _, k := range kinds.All() {
		watched = append(watched, k.GroupKind())
	}
	return workloads.New(api, mapper, watched...), nil
}

// followWorkloads starts the watches of workloads, which end with ctx. The scheduler has those of
// StatefulSets and of ReplicaSets already.
func (w *world) followWorkloads(ctx context.Context, shared informers.SharedInformerFactory) error {
	w.workloads.Tell(w.workloadChanged)
	apps := shared.Apps().V1()
	if err := w.workloads.Lend(identity.StatefulSets, apps.StatefulSets().Informer()); err != nil {
		return err
	}
	if w.kinds.Slots() {
		if err := w.workloads.Lend(identity.ReplicaSets, apps.ReplicaSets().Informer()); err != nil {
			return err
		}
	}
	go func() {
		if err := w.workloads.Start(ctx); err != nil {
			loggerFrom(ctx).Error(err, "The watches of workloads have ended")
		}
	}()
	return nil
}

// workloadChanged wakes the pods of workloads that came, or that ask for other addresses now, or for fixed ones at all.
func (w *world) workloadChanged(before, after *identity.Workload) {
	if after != nil && (before == nil || request.Relevant(*before, *after) || identity.OptsOut(before.Template) != identity.OptsOut(after.Template)) {
		w.tell(news{workload: after.Resource()})
	}
}

// identityOf is the identity of a pod. Where it can't be told, the cause is what helps: the pod's
// annotation, which needs none, or what controls it.
func (p *Plugin) identityOf(pod *corev1.Pod) (id identity.Identity, fixed bool, helps cause, err error) {
	id, fixed, err = identity.Of(pod, p.kinds, p.world.workloads.Controller)
	if errors.Is(err, identity.ErrUnseen) {
		helps.workload = resourceOf(pod)
	}
	return id, fixed, helps, err
}

// resourceOf names what controls a pod as pool entries do; empty where nothing does.
func resourceOf(pod *corev1.Pod) string {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return ""
	}
	return identity.Resource(pod.Namespace, schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).GroupKind(), owner.Name)
}
