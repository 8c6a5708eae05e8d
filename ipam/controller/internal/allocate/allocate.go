// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package allocate

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/controller/internal/gather"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reclaim"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// Allocator writes entries into the pools of nodes.
type Allocator struct {
	Writer *ciliumpool.Writer
	// Live reads from the API server.
	Live  client.Reader
	Clock clock.PassiveClock
}

// Request describes the addresses that a pod gets on a node.
type Request struct {
	Node  string
	Addrs []netip.Addr
	// Entry is the owned entry to write for each address.
	Entry pool.Entry
	// Pod is the pod, which may run with some of the addresses; nil: it does not exist.
	Pod *corev1.Pod
	// Seen are the entries that the agent has acknowledged; may be nil. Key: the address. An address in cooldown is allocated
	// only if its entry is still the one in Seen.
	Seen map[netip.Addr]pool.Entry
	// Check returns an error if the pool must not give the addresses to the pod; it may be nil.
	Check func(n pool.NodePool) error
}

// runsWith reports whether the pod runs on the node with an address.
func (r Request) runsWith(a netip.Addr) bool {
	return podutil.Runs(r.Pod) && r.Pod.Spec.NodeName == r.Node && podutil.RunsWith(r.Pod, a)
}

// Withdraw puts the dynamic entries of addresses that the pod runs with into cooldown, so that the pool offers the addresses to
// no pod. Its errors are those of Allocate.
func (l *Allocator) Withdraw(ctx context.Context, r Request) error {
	return l.write(ctx, r, func(n pool.NodePool) ([]pool.EntryChange, error) {
		return reclaim.WithdrawEntries(n, r.Addrs, r.Entry.Owner(), l.Clock.Now())
	})
}

// Allocate writes the entries of all addresses or, if one entry cannot be written, none of them. For addresses in cooldown,
// Request.Seen has to contain the entries for which the evidence was sufficient. The error matches gather.ErrSuperseded if the
// pool or the pod has changed, or the error of Check if Check failed. If the pod has changed during the write, only the edits
// that write names are undone, and the other new entries remain.
func (l *Allocator) Allocate(ctx context.Context, r Request) error {
	return l.write(ctx, r, func(n pool.NodePool) ([]pool.EntryChange, error) {
		return reclaim.AllocateEntries(n, r.Addrs, r.Entry, func(a netip.Addr) bool {
			seen, ok := r.Seen[a]
			return ok && n.Entries[a] == seen && r.runsWith(a)
		})
	})
}

// write writes the edits that decide returns. If the pod runs with some of the addresses, write checks before and after the
// write that the API server still shows this. If the check before the write fails, write writes nothing. If the check after
// the write fails, write undoes the edits of existing entries of these addresses.
func (l *Allocator) write(ctx context.Context, r Request, decide func(n pool.NodePool) ([]pool.EntryChange, error)) error {
	if err := l.stillRuns(ctx, r); err != nil {
		return err
	}
	_, err := l.Writer.Apply(ctx, ciliumpool.Change{
		WriteRequest: ciliumpool.WriteRequest{Node: r.Node, FromAPIServer: true, Decide: func(n pool.NodePool) ([]pool.EntryChange, error) {
			if r.Check != nil {
				if err := r.Check(n); err != nil {
					return nil, err
				}
			}
			return decide(n)
		}},
		Confirm: func(ctx context.Context, written []pool.EntryChange) ([]pool.EntryChange, error) {
			err := l.stillRuns(ctx, r)
			if !errors.Is(err, gather.ErrSuperseded) {
				return nil, err
			}
			return slices.DeleteFunc(slices.Clone(written), func(e pool.EntryChange) bool { return e.From == nil || !r.runsWith(e.Addr) }), nil
		},
	})
	switch {
	case errors.Is(err, ciliumpool.ErrUndone), errors.Is(err, pool.ErrTaken), errors.Is(err, ciliumpool.ErrGone):
		return fmt.Errorf("write the entries of %s on node %s: %w: %w", address.Join(r.Addrs), r.Node, gather.ErrSuperseded, err)
	case err != nil:
		return fmt.Errorf("write the entries of %s on node %s: %w", address.Join(r.Addrs), r.Node, err)
	}
	return nil
}

// stillRuns reads the pod from the API server. The error matches gather.ErrSuperseded if the pod was replaced or no longer runs
// with one of the addresses that it ran with. If the pod ran with none of the addresses, stillRuns reads nothing and returns
// nil.
func (l *Allocator) stillRuns(ctx context.Context, r Request) error {
	if !slices.ContainsFunc(r.Addrs, r.runsWith) {
		return nil
	}
	key := client.ObjectKeyFromObject(r.Pod)
	now, err := index.Get[corev1.Pod](ctx, l.Live, key)
	if err != nil {
		return err
	}
	live := Request{Node: r.Node, Pod: now}
	lost := func(a netip.Addr) bool { return r.runsWith(a) && !live.runsWith(a) }
	if now == nil || now.UID != r.Pod.UID || slices.ContainsFunc(r.Addrs, lost) {
		return fmt.Errorf("pod %s was replaced or no longer runs with %s: %w", key, address.Join(r.Addrs), gather.ErrSuperseded)
	}
	return nil
}
