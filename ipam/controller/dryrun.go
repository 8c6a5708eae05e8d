// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"

	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"fixedip.io/fixedip/ipam/store/dryrun"
)

// dryRunManager is a manager whose client and events tell what they would do, and do nothing.
type dryRunManager struct {
	manager.Manager
	client *dryrun.Client
}

func newDryRunManager(mgr manager.Manager) (manager.Manager, error) {
	tell := klog.Background().WithName("dry-run")
	c := dryrun.New(mgr.GetClient(), tell)
	err := mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		<-ctx.Done()
		tell.Info("Nothing was written", "writes", c.Writes())
		return nil
	}))
	if err != nil {
		return nil, fmt.Errorf("add the end of the dry run: %w", err)
	}
	return dryRunManager{Manager: mgr, client: c}, nil
}

// GetClient reads from the caches and writes nothing.
func (m dryRunManager) GetClient() client.Client { return m.client }

// GetEventRecorder sends no events.
func (m dryRunManager) GetEventRecorder(string) events.EventRecorder {
	return dryrun.Recorder{Log: klog.Background().WithName("dry-run")}
}

// liveClient reads from the API server, past the caches.
func liveClient(mgr manager.Manager) (client.Client, error) {
	live, err := client.New(mgr.GetConfig(), client.Options{Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()})
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	if m, ok := mgr.(dryRunManager); ok {
		return m.client.Over(live), nil
	}
	return live, nil
}
