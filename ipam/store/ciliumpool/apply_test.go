// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ciliumpool

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"

	"fixedip.io/fixedip/ipam/core/pool"
)

// TestApply checks that the edits that Confirm returns are undone at once, regardless of the rate limit, and that the undo
// restores the former entries: an entry that did not exist before is removed (finding C12 in docs/project/findings.md). If
// Confirm keeps failing, the change stays.
func TestApply(t *testing.T) {
	owned := pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql")
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	first, second, fresh := addr("10.0.1.100"), addr("10.0.1.101"), addr("10.0.1.102")
	start := map[netip.Addr]pool.Entry{first: owned, second: {}}
	cooling := pool.CooldownEntry(owned.Owner(), at)
	unavailable := apierrors.NewServiceUnavailable("down")
	release := func(n pool.NodePool) ([]pool.EntryChange, error) { return n.Release(owned.Owner(), nil, at), nil }
	own := func(addrs ...netip.Addr) func(pool.NodePool) ([]pool.EntryChange, error) {
		return func(n pool.NodePool) (edits []pool.EntryChange, err error) {
			for _, a := range addrs {
				if n.Entries[a] != owned {
					edits = append(edits, n.Set(a, owned))
				}
			}
			return edits, nil
		}
	}
	// replan decides own(before) in the first try and own(after) in all others.
	replan := func(before, after netip.Addr) func(pool.NodePool) ([]pool.EntryChange, error) {
		plan := before
		return func(n pool.NodePool) ([]pool.EntryChange, error) {
			edits, err := own(plan)(n)
			plan = after
			return edits, err
		}
	}
	refuteAll := func(_ *apiServer, _ int, written []pool.EntryChange) ([]pool.EntryChange, error) { return written, nil }
	confirmAll := func(*apiServer, int, []pool.EntryChange) ([]pool.EntryChange, error) { return nil, nil }
	for name, c := range map[string]struct {
		decide func(pool.NodePool) ([]pool.EntryChange, error)
		// confirm is Change.Confirm. call is the number of the call, from 1.
		confirm func(api *apiServer, call int, written []pool.EntryChange) ([]pool.EntryChange, error)
		fail    func(n int) (error, bool)
		want    map[netip.Addr]pool.Entry
		// remaining contains the addresses of the edits that are not undone.
		remaining []netip.Addr
		err       error
		patches   int
	}{
		"no edits":                                {decide: own(), confirm: refuteAll, want: start},
		"a confirmed release":                     {decide: release, confirm: confirmAll, want: map[netip.Addr]pool.Entry{first: cooling, second: {}}, remaining: []netip.Addr{first}, patches: 1},
		"a release that a new pod refutes":        {decide: release, confirm: refuteAll, want: start, err: ErrUndone, patches: 2},
		"an owner on a dynamic entry":             {decide: own(second), confirm: refuteAll, want: start, err: ErrUndone, patches: 2},
		"an owner on an address without an entry": {decide: own(fresh), confirm: refuteAll, want: start, err: ErrUndone, patches: 2},
		"one of two edits is undone": {decide: own(second, fresh), confirm: func(_ *apiServer, _ int, written []pool.EntryChange) ([]pool.EntryChange, error) {
			return written[:1], nil
		}, want: map[netip.Addr]pool.Entry{first: owned, second: {}, fresh: owned}, remaining: []netip.Addr{fresh}, err: ErrUndone, patches: 2},
		"another client changed the entry before the undo": {decide: release, confirm: func(api *apiServer, _ int, written []pool.EntryChange) ([]pool.EntryChange, error) {
			n, err := New(api).Get(context.Background(), "n")
			if err == nil {
				_, err = New(api).ChangeEntries(context.Background(), n, []pool.EntryChange{n.Set(first, pool.ForOwner("db/other-0"))}, false)
			}
			return written, err
		}, want: map[netip.Addr]pool.Entry{first: pool.ForOwner("db/other-0"), second: {}}, err: ErrUndone, patches: 2},
		"a confirmation that fails once": {decide: release, confirm: func(_ *apiServer, call int, written []pool.EntryChange) ([]pool.EntryChange, error) {
			if call == 1 {
				return nil, unavailable
			}
			return written, nil
		}, want: start, err: ErrUndone, patches: 2},
		"a confirmation that keeps failing": {decide: release, confirm: func(*apiServer, int, []pool.EntryChange) ([]pool.EntryChange, error) {
			return nil, unavailable
		}, want: map[netip.Addr]pool.Entry{first: cooling, second: {}}, remaining: []netip.Addr{first}, err: unavailable, patches: 1},
		"edits to undo and an error": {decide: release, confirm: func(_ *apiServer, _ int, written []pool.EntryChange) ([]pool.EntryChange, error) {
			return written, pool.ErrTaken
		}, want: start, err: pool.ErrTaken, patches: 2},
		"a lost response": {decide: release, confirm: refuteAll, fail: func(n int) (error, bool) {
			return only(n == 1, context.DeadlineExceeded), true
		}, want: start, err: ErrUndone, patches: 2},
		"another plan after a conflict": {decide: replan(second, fresh), confirm: confirmAll, fail: func(n int) (error, bool) {
			return only(n == 1, apierrors.NewConflict(resource, "n", nil)), false
		}, want: map[netip.Addr]pool.Entry{first: owned, second: {}, fresh: owned}, remaining: []netip.Addr{fresh}, patches: 2},
		"another plan after a lost response": {decide: replan(second, fresh), confirm: refuteAll, fail: func(n int) (error, bool) {
			return only(n == 1, context.DeadlineExceeded), true
		}, want: start, err: ErrUndone, patches: 3},
		"a write that is refused": {decide: release, confirm: refuteAll, fail: func(int) (error, bool) {
			return apierrors.NewForbidden(resource, "n", nil), false
		}, want: start, err: ErrRefused, patches: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newAPI(t, ciliumNode(func(cn *ciliumv2.CiliumNode) {
					cn.Spec.IPAM.Pool = ipamtypes.AllocationMap{first.String(): EncodeEntry(owned), second.String(): {}}
				}))
				api.fail = c.fail
				ctx, cancel := context.WithCancel(t.Context())
				w := NewWriter(ctx, New(api), func(string) (pool.NodePool, bool) { return pool.NodePool{}, false })
				pace := NewRateLimiter(clock.RealClock{}, 2)
				w.RateLimit = pace
				calls := 0
				began := time.Now()
				remaining, err := w.Apply(ctx, Change{WriteRequest: WriteRequest{Node: "n", Decide: c.decide}, Confirm: func(_ context.Context, written []pool.EntryChange) ([]pool.EntryChange, error) {
					calls++
					return c.confirm(api, calls, written)
				}})
				took := time.Since(began)
				cancel()
				w.Wait()
				if (c.err == nil) != (err == nil) || c.err != nil && !errors.Is(err, c.err) {
					t.Errorf("got error %v, want %v", err, c.err)
				}
				if took > 5*time.Second {
					t.Errorf("Apply took %v, want at most 5s: the undo must not wait for the rate limit", took)
				}
				var at []netip.Addr
				for _, e := range remaining {
					at = append(at, e.Addr)
				}
				if diff := cmp.Diff(c.want, api.entries(t), compareAddrs) + cmp.Diff(c.remaining, at, compareAddrs); diff != "" || api.patches < c.patches {
					t.Errorf("got %d patches, want at least %d; entries and remaining edits (-want +got): %s", api.patches, c.patches, diff)
				}
			})
		})
	}
}

// TestApplyEndsWithItsWriter checks that Apply returns an error if the Writer ends before Confirm succeeds.
func TestApplyEndsWithItsWriter(t *testing.T) {
	api := newAPI(t, ciliumNode(func(cn *ciliumv2.CiliumNode) {
		cn.Spec.IPAM.Pool = ipamtypes.AllocationMap{"10.0.1.100": {Owner: "db/mysql-0"}}
	}))
	ctx, cancel := context.WithCancel(t.Context())
	w := NewWriter(ctx, New(api), func(string) (pool.NodePool, bool) { return pool.NodePool{}, false })
	// End the Writer when the patch is applied.
	w.OnPatch = func(int, bool) { cancel() }
	_, err := w.Apply(t.Context(), Change{
		WriteRequest: WriteRequest{Node: "n", Decide: func(n pool.NodePool) ([]pool.EntryChange, error) {
			return n.Release("db/mysql-0", nil, time.Unix(1, 0)), nil
		}},
		Confirm: func(ctx context.Context, _ []pool.EntryChange) ([]pool.EntryChange, error) { return nil, ctx.Err() },
	})
	w.Wait()
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want %v", err, context.Canceled)
	}
}

// TestApplyOutlivesItsCaller checks that a written change is confirmed or undone even if the context of the caller ends.
func TestApplyOutlivesItsCaller(t *testing.T) {
	api := newAPI(t, ciliumNode(func(cn *ciliumv2.CiliumNode) {
		cn.Spec.IPAM.Pool = ipamtypes.AllocationMap{"10.0.1.100": {Owner: "db/mysql-0"}}
	}))
	ctx, cancel := context.WithCancel(t.Context())
	w := NewWriter(ctx, New(api), func(string) (pool.NodePool, bool) { return pool.NodePool{}, false })
	caller, giveUp := context.WithCancel(t.Context())
	_, err := w.Apply(caller, Change{
		WriteRequest: WriteRequest{Node: "n", Decide: func(n pool.NodePool) ([]pool.EntryChange, error) {
			return n.Release("db/mysql-0", nil, time.Unix(1, 0)), nil
		}},
		Confirm: func(ctx context.Context, written []pool.EntryChange) ([]pool.EntryChange, error) {
			giveUp()
			return written, ctx.Err()
		},
	})
	cancel()
	w.Wait()
	if !errors.Is(err, ErrUndone) || api.entries(t)[addr("10.0.1.100")].Owner() != "db/mysql-0" {
		t.Errorf("got error %v and entries %v, want %v and the former entry of db/mysql-0", err, api.entries(t), ErrUndone)
	}
}
