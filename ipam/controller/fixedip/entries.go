// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/internal/requeue"
	"fixedip.io/fixedip/ipam/controller/metrics"
	"fixedip.io/fixedip/ipam/controller/release"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reclaim"
	"fixedip.io/fixedip/ipam/core/reservation"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// allocate writes the entries of recorded addresses into the pool of their home. An obstacle is found again by the
// next decision, which reports it. The IP of a dynamic entry, or of one in cooldown, is written only while the pod provably
// runs with it: before the write, and after it, or the write is undone.
func (c *Controller) allocate(ctx context.Context, s reclaim.State, a reclaim.Action) error {
	entry := reservation.EntryOf(s.Record)
	own := func(addr netip.Addr) bool { return reclaim.RunsOn(s.Pod, a.Node, addr) }
	if slices.ContainsFunc(a.Addrs, own) {
		if runs, err := c.stillRuns(ctx, s.Pod, a); err != nil {
			return err
		} else if !runs {
			return fmt.Errorf("pod %s does not run with %v any more: %w", klog.KObj(s.Pod), a.Addrs, requeue.ErrSuperseded)
		}
	}
	_, err := c.Writer.Apply(ctx, ciliumpool.Change{
		WriteRequest: ciliumpool.WriteRequest{Node: a.Node, FromAPIServer: true, Decide: func(n pool.NodePool) ([]pool.EntryChange, error) {
			return reclaim.AllocateEntries(n, a.Addrs, entry, own, c.Clock.Now())
		}},
		Confirm: func(ctx context.Context, written []pool.EntryChange) ([]pool.EntryChange, error) {
			adopted := slices.DeleteFunc(slices.Clone(written), func(e pool.EntryChange) bool { return e.From == nil || !own(e.Addr) })
			if len(adopted) == 0 {
				return nil, nil
			}
			if runs, err := c.stillRuns(ctx, s.Pod, a); err != nil || runs {
				return nil, err
			}
			return adopted, nil
		},
	})
	switch {
	case errors.Is(err, ciliumpool.ErrUndone):
		return fmt.Errorf("pod %s does not run with %v any more: %w: %w", klog.KObj(s.Pod), a.Addrs, requeue.ErrSuperseded, err)
	case errors.Is(err, pool.ErrTaken), errors.Is(err, ciliumpool.ErrGone):
		return fmt.Errorf("write the entries of %v on node %s: %w: %w", a.Addrs, a.Node, requeue.ErrSuperseded, err)
	case err != nil:
		return fmt.Errorf("write the entries of %v on node %s: %w", a.Addrs, a.Node, err)
	}
	klog.FromContext(ctx).Info("Entries written", "ips", a.Addrs, "node", a.Node)
	c.Events.Eventf(s.Record, nil, corev1.EventTypeNormal, "Allocated", "AllocateEntries", "IP %v has its entry in the pool of node %s", a.Addrs, a.Node)
	return nil
}

// stillRuns reads whether the very pod runs on the node with those of the IPs that it ran with.
func (c *Controller) stillRuns(ctx context.Context, pod *corev1.Pod, a reclaim.Action) (bool, error) {
	now, err := index.Get[corev1.Pod](ctx, c.Live, client.ObjectKeyFromObject(pod))
	if now == nil || err != nil {
		return false, err
	}
	lost := func(addr netip.Addr) bool {
		return reclaim.RunsOn(pod, a.Node, addr) && !reclaim.RunsOn(now, a.Node, addr)
	}
	return now.UID == pod.UID && !slices.ContainsFunc(a.Addrs, lost), nil
}

// releaseEntries puts addresses of an identity on one node into their cooldown, which the controller of node pools
// ends. It returns ErrSuperseded if the pod is bound to the node, or was bound to it during the write; then it has its
// entries again.
func (c *Controller) releaseEntries(ctx context.Context, key types.NamespacedName, s reclaim.State, a reclaim.Action) error {
	owner, at := pool.OwnerKey(key.Namespace, key.Name), c.Clock.Now()
	released, err := c.Writer.Apply(ctx, ciliumpool.Change{
		WriteRequest: ciliumpool.WriteRequest{Node: a.Node, FromAPIServer: true, Decide: func(n pool.NodePool) ([]pool.EntryChange, error) {
			edits := n.Release(owner, a.Addrs, at)
			if release.MayUse(s.Pod, a.Node, edits) {
				return nil, fmt.Errorf("pod %s is bound to node %s: %w", key, a.Node, requeue.ErrSuperseded)
			}
			return edits, nil
		}},
		Confirm: func(ctx context.Context, written []pool.EntryChange) ([]pool.EntryChange, error) {
			pod, err := index.Get[corev1.Pod](ctx, c.Live, key)
			if err != nil || !release.MayUse(pod, a.Node, written) {
				return nil, err
			}
			return written, nil
		},
	})
	switch {
	case errors.Is(err, ciliumpool.ErrGone):
		return nil
	case errors.Is(err, ciliumpool.ErrUndone):
		return fmt.Errorf("pod %s was bound to node %s during the release and keeps its address: %w: %w", key, a.Node, requeue.ErrSuperseded, err)
	case err != nil:
		return fmt.Errorf("release the address of %s on node %s: %w", key, a.Node, err)
	}
	klog.FromContext(ctx).Info("Address released", "node", a.Node, "entries", len(released))
	metrics.Released(causeOf(s), len(released))
	return nil
}

// causeOf returns why addresses are released.
func causeOf(s reclaim.State) metrics.Cause {
	switch {
	case s.Record == nil:
		return metrics.Unrecorded
	case s.Record.DeletionTimestamp != nil:
		return metrics.Deleted
	}
	return metrics.Beside
}

// releaseMoved performs a step of the release of a moved address: see reclaim.State.
func (c *Controller) releaseMoved(ctx context.Context, key types.NamespacedName, a reclaim.Action) error {
	owner, at := pool.OwnerKey(key.Namespace, key.Name), c.Clock.Now()
	err := c.Writer.Write(ctx, ciliumpool.WriteRequest{Node: a.Node, FromAPIServer: true, RequireUnchangedSpec: a.Type == reclaim.ReleaseHome, Decide: func(n pool.NodePool) ([]pool.EntryChange, error) {
		switch a.Type {
		case reclaim.MarkLeaving:
			return pool.Move{Owner: owner, From: a.From, Addrs: a.Addrs}.MarkLeaving(n)
		case reclaim.FenceTarget:
			return n.FenceTarget(owner, a.Addrs, at), nil
		}
		if n.Generation != a.Generation {
			return nil, fmt.Errorf("CiliumNode %s was written since: %w", n.Name, requeue.ErrSuperseded)
		}
		return n.ReturnHome(owner, a.From, a.Addrs, at), nil
	}})
	switch {
	case errors.Is(err, pool.ErrUndecided):
		return fmt.Errorf("%w: %w", err, requeue.ErrSuperseded)
	case err != nil && !errors.Is(err, ciliumpool.ErrGone):
		return fmt.Errorf("%s of IP %v of %s on node %s: %w", a.Type, a.Addrs, key, a.Node, err)
	}
	return nil
}
