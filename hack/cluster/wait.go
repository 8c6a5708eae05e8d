// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// waitFor returns when the condition holds for one of the existing objects or for a later event. watchtools.UntilWithSync
// does the same, but its informer logs the end of the wait as an error.
func waitFor(ctx context.Context, lw *cache.ListWatch, condition watchtools.ConditionFunc) error {
	list, err := lw.ListWithContext(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the objects: %w", err)
	}
	items, err := meta.ExtractList(list)
	if err != nil {
		return fmt.Errorf("read the listed objects: %w", err)
	}
	for _, item := range items {
		if done, err := condition(watch.Event{Type: watch.Added, Object: item}); done || err != nil {
			return err
		}
	}
	accessor, err := meta.ListAccessor(list)
	if err != nil {
		return fmt.Errorf("read the resource version of the list: %w", err)
	}
	_, err = watchtools.Until(ctx, accessor.GetResourceVersion(), lw, condition)
	return err
}
