// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package nodepool

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// write brings the pool up to date. A pod that was bound to the node during the write under the name of a pod that
// is gone has the unreserved entry of that name again.
func (r *Reconciler) write(ctx context.Context, n pool.Node, d *duty, untrack bool) error {
	_, err := r.Writer.Apply(ctx, ciliumpool.Change{
		Request: ciliumpool.Request{
			Node: n.Name,
			Decide: func(n pool.Node) ([]pool.Edit, error) {
				edits := d.edits(n)
				if !d.live {
					edits = slices.DeleteFunc(edits, takesAway)
				}
				return edits, nil
			},
			Marks:   d.marks,
			Untrack: untrack,
			// The decision relies on the whole pool if pods wait for an address: a scheduler may claim an address
			// for one of them at the same time.
			Whole: d.strict || len(d.waiting) > 0,
		},
		Confirm: func(ctx context.Context, written []pool.Edit) ([]pool.Edit, error) {
			freed := slices.DeleteFunc(slices.Clone(written), func(e pool.Edit) bool { return e.From == nil || !e.From.IsUnreserved() })
			if len(freed) == 0 {
				return nil, nil
			}
			here, err := r.livePods(ctx, n.Name)
			if err != nil {
				return nil, err
			}
			return slices.DeleteFunc(freed, func(e pool.Edit) bool {
				return !slices.ContainsFunc(here, func(pod corev1.Pod) bool {
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

// takesAway reports whether an edit would be wrong if a pod that the caches do not show had the address: it removes
// a dynamic entry, makes one a pod's, or ends a cooldown.
func takesAway(e pool.Edit) bool {
	switch {
	case e.From == nil:
		return false
	case e.From.Kind == pool.Cooldown:
		return e.To == nil
	}
	return e.From.Kind == pool.Dynamic && (e.To == nil || e.To.Kind != pool.NodeOwned)
}
