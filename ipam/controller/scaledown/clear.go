// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package scaledown

import (
	"context"
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Clear removes from all Nodes the annotations that fixedip has set. The caller has to make sure that no controller is active,
// because a controller would set them again. An error names each Node that keeps its annotations.
func Clear(ctx context.Context, c client.Client) error {
	var nodes corev1.NodeList
	if err := c.List(ctx, &nodes); err != nil {
		return fmt.Errorf("list the Nodes to remove their scale-down annotations: %w", err)
	}
	var errs []error
	for i := range nodes.Items {
		if err := clearNode(ctx, c, &nodes.Items[i]); err != nil {
			errs = append(errs, fmt.Errorf("remove the scale-down annotations of node %s: %w", nodes.Items[i].Name, err))
		}
	}
	return errors.Join(errs...)
}

// clearNode removes from a Node the annotations that fixedip has set. It reads the Node again after a conflict.
func clearNode(ctx context.Context, c client.Client, node *corev1.Node) error {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		cleared := node.DeepCopy()
		cleared.Annotations = annotate(node.Annotations, nil)
		if maps.Equal(cleared.Annotations, node.Annotations) {
			return nil
		}
		err := c.Patch(ctx, cleared, client.MergeFromWithOptions(node, client.MergeFromWithOptimisticLock{}))
		if apierrors.IsConflict(err) {
			if err := c.Get(ctx, client.ObjectKeyFromObject(node), node); err != nil {
				return err
			}
		}
		return err
	})
	return client.IgnoreNotFound(err)
}
