// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package dryrun

import (
	"context"
	"fmt"

	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// Manager is a manager whose client and event recorder log what they would write.
type Manager struct {
	manager.Manager
	client *Client
}

// NewManager returns a Manager that wraps another manager. It logs the number of writes when it stops.
func NewManager(mgr manager.Manager) (*Manager, error) {
	log := klog.Background().WithName("dry-run")
	c := New(mgr.GetClient(), log)
	err := mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		<-ctx.Done()
		log.Info("Nothing was written", "writes", c.Writes())
		return nil
	}))
	if err != nil {
		return nil, fmt.Errorf("add the end of the dry run: %w", err)
	}
	return &Manager{Manager: mgr, client: c}, nil
}

// GetClient returns a client that reads from the caches and stores nothing.
func (m *Manager) GetClient() client.Client { return m.client }

// GetEventRecorder returns a recorder that sends no events.
func (m *Manager) GetEventRecorder(string) events.EventRecorder {
	return Recorder{Log: klog.Background().WithName("dry-run")}
}

// Over returns a client of the same dry run that wraps a different client.
func (m *Manager) Over(api client.Client) client.Client { return m.client.Over(api) }
