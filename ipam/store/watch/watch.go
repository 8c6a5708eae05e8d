// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"fmt"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Objects calls changed for each event about the objects of one kind in a cache. The parameter "of" is an object of that
// kind. T is the type of the objects in the cache: the type of "of", unless a transform of the cache changes the type.
// before is nil for a new object, after is nil for a deleted one. The cache need not be started yet. synced reports whether
// changed was called for all objects that existed at the start.
func Objects[T client.Object](ctx context.Context, objects cache.Cache, of client.Object, changed func(before, after T)) (synced func() bool, err error) {
	informer, err := objects.GetInformer(ctx, of, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("get the informer of %T: %w", of, err)
	}
	registration, err := informer.AddEventHandler(Handler(changed))
	if err != nil {
		return nil, fmt.Errorf("add an event handler for %T: %w", of, err)
	}
	return registration.HasSynced, nil
}

// Handler returns an event handler that calls changed as Objects does.
func Handler[T any](changed func(before, after T)) toolscache.ResourceEventHandlerFuncs {
	var none T
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { changed(none, obj.(T)) },
		UpdateFunc: func(before, after any) { changed(before.(T), after.(T)) },
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
				// The watch missed the deletion. The tombstone has the last version that the watch has shown.
				obj = tombstone.Obj
			}
			changed(obj.(T), none)
		},
	}
}
