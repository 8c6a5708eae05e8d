// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package nodepool

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/core/nodepool"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// write brings the pool up to date. If a pod with the name of a removed unreserved entry was bound to the node during the
// write, the entry is restored.
func (r *Reconciler) write(ctx context.Context, node string, s *nodepool.State, strip bool) error {
	_, err := r.Writer.Apply(ctx, ciliumpool.Change{
		WriteRequest: ciliumpool.WriteRequest{
			Node:               node,
			Decide:             func(n pool.NodePool) ([]pool.EntryChange, error) { return s.SafeEdits(n), nil },
			Marks:              s.Marks,
			StripManagedFields: strip,
			// The decision relies on the whole pool if pods wait for an address: a scheduler may claim an address
			// for one of them at the same time.
			RequireUnchangedSpec: s.Strict || len(s.Waiting) > 0,
		},
		Confirm: func(ctx context.Context, written []pool.EntryChange) ([]pool.EntryChange, error) {
			removed := slices.DeleteFunc(slices.Clone(written), func(e pool.EntryChange) bool { return e.From == nil || !e.From.IsUnreserved() })
			if len(removed) == 0 {
				return nil, nil
			}
			pods, err := index.LivePodsOnNode(ctx, r.Live, node)
			if err != nil {
				return nil, err
			}
			return slices.DeleteFunc(removed, func(e pool.EntryChange) bool {
				return !slices.ContainsFunc(pods, func(pod corev1.Pod) bool {
					return pool.OwnerKey(pod.Namespace, pod.Name) == e.From.Owner && !podutil.IsTerminal(&pod)
				})
			}), nil
		},
	})
	if errors.Is(err, ciliumpool.ErrUndone) {
		return nil
	}
	return err
}
