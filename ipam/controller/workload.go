// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/store/workloads"
)

// newWorkloads returns the store of workloads, which the manager runs.
func newWorkloads(mgr manager.Manager, kinds identity.Kinds) (*workloads.Store, error) {
	api, err := dynamic.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return nil, fmt.Errorf("make a client of workloads: %w", err)
	}
	var watched []schema.GroupKind
	for _, k := range kinds.All() {
		watched = append(watched, k.GroupKind())
	}
	store := workloads.New(api, mgr.GetRESTMapper(), watched...)
	if err := mgr.Add(store); err != nil {
		return nil, fmt.Errorf("run the watches of workloads: %w", err)
	}
	return store, nil
}
