// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// settleTries bounds how often a step of a move is decided anew because others write to the same
// pool.
const settleTries = 8

// errMoved: the pool was written to since it was looked at.
var errMoved = errors.New("the pool has changed since it was looked at")

// move makes the steps of pool.Move that remain, and waits until the plugin's own watch shows the last.
// What each of them takes away is decided at the API server, and it is looked there once more at the
// pod: it may have been bound to its old node by another scheduler, which writes nothing for that.
func (p *Plugin) move(ctx context.Context, pod *corev1.Pod, c *cycle, claim ledger.Claim) error {
	if p.world.ledger.Stands(claim) {
		return nil
	}
	home, err := p.world.ledger.HomeOf(claim.Owner, claim.Addrs)
	if err != nil {
		return fmt.Errorf("%w: %w", err, pool.ErrUndecided)
	}
	m := pool.Move{Owner: claim.Owner, Entry: c.id.Entry(), Addrs: claim.Addrs, Home: home, From: c.reservation.node, To: claim.Node}
	if m.Fence, err = p.fence(ctx, c, m.From, m.Addrs); err != nil {
		return err
	}
	if m.To != m.Home {
		if err := p.world.write(ctx, m.To, m.Announce); err != nil {
			return fmt.Errorf("announce %s on node %s: %w", address.Join(m.Addrs), m.To, err)
		}
	}
	switch m.From {
	case m.Home:
		err = p.take(ctx, pod, m.From, m.Home, m.Turn)
	case m.To:
		// A move that was about to go on from there stays.
		err = p.world.write(ctx, m.Home, m.Turn)
	default:
		err = p.goOn(ctx, pod, m)
	}
	if err != nil {
		return fmt.Errorf("have %s, at home on node %s, on node %s instead of %s: %w", address.Join(m.Addrs), m.Home, m.To, m.From, err)
	}
	if m.To != m.Home {
		if err := p.world.settle(ctx, m); err != nil {
			return fmt.Errorf("settle %s on node %s: %w", address.Join(m.Addrs), m.To, err)
		}
	}
	loggerFrom(ctx).V(2).Info("Address moved", "pod", klog.KObj(pod), "from", m.From, "to", m.To, "home", m.Home, "ips", m.Addrs)
	return p.world.await(ctx, claim)
}

// goOn makes the steps Depart, Leave and Turn, for addresses that leave a node that is not their home.
func (p *Plugin) goOn(ctx context.Context, pod *corev1.Pod, m pool.Move) error {
	at := time.Now()
	for range settleTries {
		if err := p.world.write(ctx, m.Home, m.Depart); err != nil {
			return err
		}
		home, err := p.world.stored.Get(ctx, m.Home)
		if err != nil {
			return err
		}
		err = p.take(ctx, pod, m.From, m.From, func(n pool.Node) ([]pool.Edit, error) { return m.Leave(n, at) })
		if err != nil && !errors.Is(err, ciliumpool.ErrGone) {
			return err
		}
		if err := p.world.writeSame(ctx, home, m.Turn); !errors.Is(err, errMoved) {
			return err
		}
	}
	return fmt.Errorf("CiliumNode %s is written to all the time: %w", m.Home, errMoved)
}

// fence is what the API server says of the node that addresses are about to leave, and what the silence of
// its agent is worth.
func (p *Plugin) fence(ctx context.Context, c *cycle, name string, addrs []netip.Addr) (pool.Fence, error) {
	node, err := p.handle.ClientSet().CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return pool.Down, nil
	case err != nil:
		return pool.Unfenced, fmt.Errorf("read node %s: %w", name, err)
	}
	fence := fenceOf(node)
	if fence != pool.Reported {
		return fence, nil
	}
	if at, _ := p.silence.until(c.uid, c.made, name, addrs, time.Now()); at.IsZero() {
		return fence, nil
	}
	n, err := p.world.stored.Get(ctx, name)
	if err != nil && !errors.Is(err, ciliumpool.ErrGone) {
		return pool.Unfenced, err
	}
	p.silence.note(c.podKey(), c.uid, n, addrs)
	if at, _ := p.silence.until(c.uid, c.made, name, addrs, time.Now()); !at.IsZero() {
		return pool.Unheard, nil
	}
	return fence, nil
}

// take makes the edits of a step that takes addresses away, in the pool of a node, and then looks at
// the pod. If one of its name has been bound to the node that it is to leave, that pod gets the entries
// back. Nobody else can have had the addresses in between.
func (p *Plugin) take(ctx context.Context, pod *corev1.Pod, from, node string, decide func(pool.Node) ([]pool.Edit, error)) error {
	var made []pool.Edit
	err := p.world.write(ctx, node, func(n pool.Node) ([]pool.Edit, error) {
		edits, err := decide(n)
		if len(edits) > 0 {
			// Asked again after a write whose answer was lost, there is nothing left to take.
			made = edits
		}
		return edits, err
	})
	if err != nil {
		return err
	}
	now, err := p.handle.ClientSet().CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	switch {
	case err != nil:
		return fmt.Errorf("look at pod %s/%s: %w", pod.Namespace, pod.Name, err)
	case now.Spec.NodeName == from:
		if err := p.world.write(ctx, node, func(n pool.Node) ([]pool.Edit, error) { return n.Unmoved(made), nil }); err != nil {
			return fmt.Errorf("give pod %s/%s, which was bound to node %s meanwhile, its address back: %w", pod.Namespace, pod.Name, from, err)
		}
		return fmt.Errorf("pod %s/%s was bound to node %s meanwhile, and has its address back: %w", pod.Namespace, pod.Name, from, pool.ErrTaken)
	case now.UID != pod.UID || now.Spec.NodeName != "":
		return fmt.Errorf("pod %s/%s is another, or bound to node %q, by now: %w", pod.Namespace, pod.Name, now.Spec.NodeName, pool.ErrTaken)
	}
	return nil
}

// write makes edits that are decided from the pool as the API server has it.
func (w *world) write(ctx context.Context, node string, decide func(pool.Node) ([]pool.Edit, error)) error {
	return w.pools.Write(ctx, ciliumpool.Request{Node: node, Live: true, Decide: decide})
}

// writeSame is write for a pool that has to be unchanged as a whole since it was seen; else errMoved.
func (w *world) writeSame(ctx context.Context, seen pool.Node, decide func(pool.Node) ([]pool.Edit, error)) error {
	return w.pools.Write(ctx, ciliumpool.Request{Node: seen.Name, Live: true, Whole: true, Decide: func(n pool.Node) ([]pool.Edit, error) {
		if n.UID != seen.UID || n.Generation != seen.Generation {
			return nil, errMoved
		}
		return decide(n)
	}})
}

// settle gives the addresses to the pod where they have gone. The pool there is looked at first, then
// the home, and the write happens only if the pool is still the same: whoever moves the addresses on
// meanwhile marks it before he turns the home.
func (w *world) settle(ctx context.Context, m pool.Move) error {
	for range settleTries {
		there, err := w.stored.Get(ctx, m.To)
		if err != nil {
			return err
		}
		home, err := w.stored.Get(ctx, m.Home)
		if err != nil {
			return err
		}
		if err := m.Turned(home); err != nil {
			return err
		}
		if err := w.writeSame(ctx, there, m.Settle); !errors.Is(err, errMoved) {
			return err
		}
	}
	return fmt.Errorf("CiliumNode %s is written to all the time: %w", m.To, errMoved)
}
