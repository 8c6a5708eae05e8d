// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ciliumpool

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/util/wait"

	"fixedip.io/fixedip/ipam/core/pool"
)

// confirmTries is the maximum number of calls of Confirm after one write.
const confirmTries = 4

// ErrUndone means that edits of a change were written, not confirmed, and undone. The caller has to decide again from the
// new state.
var ErrUndone = errors.New("the change was undone, at least in part, because the cluster has changed in the meantime")

// Change is a request that takes an entry from a pod, or gives an entry to a pod that already runs with the address of that
// entry.
//
// A restart in place writes nothing: between the decision to take an entry and the write, a scheduler may bind a pod that
// relies on the entry. No precondition of the write can exclude that, because the pod is another object. Confirm therefore
// reads from the API server after the write. No other pod can have received the address in between, because an entry that
// was taken from a pod is in cooldown.
type Change struct {
	WriteRequest
	// Confirm reads from the API server and returns the written edits that have to be undone. An error that comes with
	// edits to undo is final, and is returned after they were undone; any other error is retried.
	Confirm func(ctx context.Context, written []pool.EntryChange) (undo []pool.EntryChange, err error)
}

// Apply makes a Change: it decides, writes with preconditions, calls Confirm, and undoes exactly the written edits that Confirm
// returns. The undo does not wait for the rate limit. Apply returns the edits that were not undone. The error matches
// ErrUndone if any edit was undone. An edit that has to be undone also counts as undone if another client has changed its
// entry since the write.
//
// If the write fails, Apply returns no edits and the error of Write. If Confirm keeps failing and returns no edits to undo, or
// the Writer ends before Confirm succeeds, all edits stay, and Apply returns them with an error. If the undo fails, Apply
// returns all edits and the error of the undo, although some of them may be undone. If the CiliumNode no longer exists then,
// Apply returns no edits and ErrGone.
//
// If a release is written and not confirmed, because Confirm keeps failing or the process dies, a cooldown entry remains. The
// same can happen if the outcome of the last try of the write is unknown. If the cooldown entry names the previous owner, the
// controller restores the former entry for a pod with that name that waits for an IP on the node.
func (w *Writer) Apply(ctx context.Context, c Change) (remaining []pool.EntryChange, err error) {
	// written contains the latest edit of each address. Decide is called again after a failed try. After a write whose
	// response was lost, Decide does not return its edits again, and they still count. Edits that the pool does not show were
	// not written, or another client has changed their entries since.
	written := map[netip.Addr]pool.EntryChange{}
	request := c.WriteRequest
	request.Decide = func(n pool.NodePool) ([]pool.EntryChange, error) {
		edits, err := c.Decide(n)
		maps.DeleteFunc(written, func(_ netip.Addr, e pool.EntryChange) bool { return len(n.Undo([]pool.EntryChange{e})) == 0 })
		for _, e := range edits {
			written[e.Addr] = e
		}
		return edits, err
	}
	if err := w.Write(ctx, request); err != nil {
		return nil, err
	}
	if len(written) == 0 {
		return nil, nil
	}
	made := slices.SortedFunc(maps.Values(written), func(a, b pool.EntryChange) int { return a.Addr.Compare(b.Addr) })
	// The pool is written. Now the context of the caller must not end the confirmation or the undo; only the end of the Writer
	// does.
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	defer context.AfterFunc(w.ctx, func() { cancel(context.Cause(w.ctx)) })()
	undo, err := w.confirm(ctx, c, made)
	if len(undo) == 0 {
		if err != nil {
			err = fmt.Errorf("confirm the change of the pool of node %s: %w", c.Node, err)
		}
		return made, err
	}
	undoErr := w.Write(ctx, WriteRequest{Node: c.Node, FromAPIServer: true, SkipRateLimit: true, Decide: func(n pool.NodePool) ([]pool.EntryChange, error) {
		return n.Undo(undo), nil
	}})
	switch {
	case errors.Is(undoErr, ErrGone):
		return nil, undoErr
	case undoErr != nil:
		return made, fmt.Errorf("undo the change of the pool of node %s: %w", c.Node, undoErr)
	}
	remaining = slices.DeleteFunc(made, func(e pool.EntryChange) bool {
		return slices.ContainsFunc(undo, func(u pool.EntryChange) bool { return u.Addr == e.Addr })
	})
	if err == nil {
		return remaining, fmt.Errorf("pool of node %s: %w", c.Node, ErrUndone)
	}
	return remaining, fmt.Errorf("pool of node %s: %w: %w", c.Node, ErrUndone, err)
}

// confirm calls Confirm until it succeeds or returns edits to undo, at most confirmTries times. It returns an error if the
// Writer ends before Confirm succeeds, and the error of Confirm if the last call fails.
func (w *Writer) confirm(ctx context.Context, c Change, made []pool.EntryChange) (undo []pool.EntryChange, err error) {
	retry := w.retry
	retry.Steps = confirmTries
	ended := wait.ExponentialBackoffWithContext(w.ctx, retry, func(context.Context) (done bool, _ error) {
		undo, err = c.Confirm(ctx, made)
		return err == nil || len(undo) > 0, nil
	})
	if err == nil && ended != nil {
		err = context.Cause(w.ctx)
	}
	return undo, err
}
