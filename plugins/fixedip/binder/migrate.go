// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// migrateTries is the maximum number of tries of a migration step. A step is tried again if another writer changed the pool
// between the read and the write.
const migrateTries = 8

// errPoolChanged means that the spec of the CiliumNode has changed, or the CiliumNode was replaced, since the pool was read.
var errPoolChanged = errors.New("the pool has changed since it was read")

// migrate performs the steps of pool.Move that remain. Each step is decided from the pool at the API server. After each step
// that takes addresses away, migrate reads the pod: another scheduler, which writes no entry, may have bound the pod to its
// old node.
func (b *Binder) migrate(ctx context.Context, pod *corev1.Pod, p *Plan, claim ledger.Claim) error {
	if b.Cache.Ledger.IsClaimed(claim) {
		return nil
	}
	home, err := b.Cache.Ledger.HomeOf(claim.Owner, claim.Addrs)
	if err != nil {
		return fmt.Errorf("%w: %w", err, pool.ErrUndecided)
	}
	m := pool.Move{Owner: claim.Owner, Entry: p.id.Entry(), Addrs: claim.Addrs, Home: home, From: p.reservation.node, To: claim.Node}
	if m.Down, err = b.mayLeave(ctx, p); err != nil {
		return err
	}
	if m.To != m.Home {
		if err := b.write(ctx, m.To, m.PrepareTarget); err != nil {
			return fmt.Errorf("prepare node %[2]s for %[1]s: %[3]w", addressText(m.Addrs), m.To, err)
		}
	}
	switch m.From {
	case m.Home:
		err = b.takeAway(ctx, pod, m.From, m.Home, new([]pool.EntryChange), m.CommitAtHome)
	case m.To:
		// The entries of the home node name To already. This step cancels an interrupted migration that was about to
		// take the addresses away from To.
		err = b.write(ctx, m.Home, m.CommitAtHome)
	default:
		err = b.vacate(ctx, pod, m)
	}
	if err != nil {
		return fmt.Errorf("move %s to node %s (home node %s): %w", addressText(m.Addrs), m.To, m.Home, err)
	}
	if m.To != m.Home {
		if err := b.complete(ctx, m); err != nil {
			return fmt.Errorf("complete the move of %s to node %s: %w", addressText(m.Addrs), m.To, err)
		}
	}
	klog.FromContext(ctx).V(2).Info("Address moved", "pod", klog.KObj(pod), "from", m.From, "to", m.To, "home", m.Home, "ips", m.Addrs)
	return nil
}

// unrecordedMove returns a Refusal if the addresses of the pod may have moved between nodes and the FixedIP does not
// name the node that has them now. If the pools of both nodes were lost after the pod was bound, and the pod was
// deleted by force, only the FixedIP would show where the pod may still run (ADR 0031).
func (b *Binder) unrecordedMove(p *Plan) *Refusal {
	r := &p.reservation
	if r.moving || r.recordedOn(r.node) || r.movableFor == "" && b.atHome(r.node, r.addrs) {
		return nil
	}
	return refuse(p.wakeOn(), "its %s %s to node %s, which the FixedIP of the pod does not name yet; the pod is placed there when the controller has recorded that node in the FixedIP", addressText(r.addrs), verb(r.addrs, "belongs", "belong"), r.node)
}

// vacate performs the steps MarkLeaving, VacateSource and CommitAtHome, for addresses that leave a node that is not their
// home.
func (b *Binder) vacate(ctx context.Context, pod *corev1.Pod, m pool.Move) error {
	at := time.Now()
	// taken contains the first edit of each address, over all tries: a later try may find the address already taken.
	var taken []pool.EntryChange
	return untilUnchanged(m.Home, func() error {
		if err := b.write(ctx, m.Home, m.MarkLeaving); err != nil {
			return err
		}
		home, err := b.Cache.Pools.Get(ctx, m.Home)
		if err != nil {
			return err
		}
		err = b.takeAway(ctx, pod, m.From, m.From, &taken, func(n pool.NodePool) ([]pool.EntryChange, error) { return m.VacateSource(n, at) })
		if err != nil && !errors.Is(err, ciliumpool.ErrGone) {
			return err
		}
		return b.writeUnchanged(ctx, home, m.CommitAtHome)
	})
}

// takeAway writes the edits that decide returns, which take addresses away, into the pool of node. It adds the edit of each
// address to made, unless made has an edit of that address already, and then reads the pod. If a pod of this name is bound
// to from, the node that the addresses leave, takeAway undoes the edits in made and returns an error: no other pod can have
// got the addresses in between. If the pod cannot be read, was replaced or was bound to another node, takeAway returns an
// error and undoes nothing.
func (b *Binder) takeAway(ctx context.Context, pod *corev1.Pod, from, node string, made *[]pool.EntryChange, decide func(pool.NodePool) ([]pool.EntryChange, error)) error {
	err := b.write(ctx, node, func(n pool.NodePool) ([]pool.EntryChange, error) {
		edits, err := decide(n)
		// After a write whose response was lost, decide is called again and returns no edits.
		for _, e := range edits {
			// The first edit of an address has the entry that an undo restores.
			if !slices.ContainsFunc(*made, func(m pool.EntryChange) bool { return m.Addr == e.Addr }) {
				*made = append(*made, e)
			}
		}
		return edits, err
	})
	if err != nil {
		return err
	}
	now, err := b.Client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	switch {
	case err != nil:
		return fmt.Errorf("read pod %s/%s: %w", pod.Namespace, pod.Name, err)
	case now.Spec.NodeName == from:
		if err := b.write(ctx, node, func(n pool.NodePool) ([]pool.EntryChange, error) { return n.Undo(*made), nil }); err != nil {
			return fmt.Errorf("undo the migration of pod %s/%s, which was bound to node %s in the meantime: %w", pod.Namespace, pod.Name, from, err)
		}
		return pool.Taken("pod %s/%s was bound to node %s in the meantime, so the migration was undone", pod.Namespace, pod.Name, from)
	case now.UID != pod.UID:
		return pool.Taken("pod %s/%s was replaced by a new pod in the meantime", pod.Namespace, pod.Name)
	case now.Spec.NodeName != "":
		return pool.Taken("pod %s/%s was bound to node %s in the meantime", pod.Namespace, pod.Name, now.Spec.NodeName)
	}
	return nil
}

// write writes the edits that decide returns for the pool at the API server.
func (b *Binder) write(ctx context.Context, node string, decide func(pool.NodePool) ([]pool.EntryChange, error)) error {
	return b.Cache.Writer.Write(ctx, ciliumpool.WriteRequest{Node: node, FromAPIServer: true, Decide: decide})
}

// writeUnchanged is like write, but returns errPoolChanged if the CiliumNode was replaced, or any part of its spec has
// changed, since seen was read.
func (b *Binder) writeUnchanged(ctx context.Context, seen pool.NodePool, decide func(pool.NodePool) ([]pool.EntryChange, error)) error {
	return b.Cache.Writer.Write(ctx, ciliumpool.WriteRequest{Node: seen.Name, FromAPIServer: true, RequireUnchangedSpec: true, Decide: func(n pool.NodePool) ([]pool.EntryChange, error) {
		if n.UID != seen.UID || n.Generation != seen.Generation {
			return nil, errPoolChanged
		}
		return decide(n)
	}})
}

// complete performs the step CompleteAtTarget. It reads the pool of the target and then that of the home. It writes
// only if the pool of the target is unchanged, because a later migration changes that pool before it commits at the
// home.
func (b *Binder) complete(ctx context.Context, m pool.Move) error {
	return untilUnchanged(m.To, func() error {
		target, err := b.Cache.Pools.Get(ctx, m.To)
		if err != nil {
			return err
		}
		home, err := b.Cache.Pools.Get(ctx, m.Home)
		if err != nil {
			return err
		}
		if err := m.CheckCommitted(home); err != nil {
			return err
		}
		return b.writeUnchanged(ctx, target, m.CompleteAtTarget)
	})
}

// untilUnchanged repeats step as long as it returns errPoolChanged, at most migrateTries times. node is the node whose pool
// has to be unchanged.
func untilUnchanged(node string, step func() error) error {
	for range migrateTries {
		if err := step(); !errors.Is(err, errPoolChanged) {
			return err
		}
	}
	return fmt.Errorf("CiliumNode %s changed during each of %d tries: %w", node, migrateTries, errPoolChanged)
}
