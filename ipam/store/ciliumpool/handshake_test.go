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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/core/pool"
)

// inHandshake returns a CiliumNode with dynamic entries at 10.0.1.1 and 10.0.1.2 and the given release-ips.
func inHandshake(keys map[string]ipamtypes.IPReleaseStatus) *ciliumv2.CiliumNode {
	return ciliumNode(func(cn *ciliumv2.CiliumNode) {
		cn.Spec.IPAM.Pool = ipamtypes.AllocationMap{"10.0.1.1": {}, "10.0.1.2": {}}
		cn.Status.IPAM.ReleaseIPs = keys
	})
}

type keys = map[string]ipamtypes.IPReleaseStatus

func TestWithdrawHandshakes(t *testing.T) {
	two := addr("10.0.1.2")
	for name, c := range map[string]struct {
		now, seen *ciliumv2.CiliumNode
		want      map[netip.Addr]pool.Handshake
		err       error
	}{
		"all states that fixedip knows": {
			now: inHandshake(keys{"10.0.1.1": "marked-for-release", "10.0.1.2": "do-not-release", "10.0.1.3": "ready-for-release", "fd00::1": "released"})},
		"the agent has answered in the meantime": {
			now: inHandshake(keys{"10.0.1.2": "ready-for-release"}), seen: inHandshake(keys{"10.0.1.2": "marked-for-release"}), err: ErrChanged},
		"the key was removed in the meantime": {now: inHandshake(nil), seen: inHandshake(keys{"10.0.1.2": "released"}), err: ErrChanged},
		"an unknown state stays": {
			now: inHandshake(keys{"10.0.1.1": "released", "10.0.1.2": "gone-fishing", "nowhere": "released"}), want: map[netip.Addr]pool.Handshake{two: pool.OtherState}},
	} {
		t.Run(name, func(t *testing.T) {
			if c.seen == nil {
				c.seen = c.now
			}
			api, n := newAPI(t, c.now), FromCiliumNode(c.seen)
			after, err := New(api).WithdrawHandshakes(t.Context(), n, n.Withdrawable())
			if !errors.Is(err, c.err) || (c.err == nil) != (err == nil) {
				t.Fatalf("got error %v, want %v", err, c.err)
			}
			if diff := cmp.Diff(c.want, after.Handshakes, compareAddrs); diff != "" {
				t.Errorf("handshakes (-want +got): %s", diff)
			}
		})
	}
}

// TestRequireUnused checks that an edit with RequireUnused is written only while the agent does not report the address as
// used, whether or not status.ipam.used exists.
func TestRequireUnused(t *testing.T) {
	using := func(used ...string) *ciliumv2.CiliumNode {
		return ciliumNode(func(cn *ciliumv2.CiliumNode) {
			cn.Spec.IPAM.Pool = ipamtypes.AllocationMap{"10.0.1.1": {Owner: "db/web-x"}}
			for _, a := range used {
				if cn.Status.IPAM.Used == nil {
					cn.Status.IPAM.Used = ipamtypes.AllocationMap{}
				}
				cn.Status.IPAM.Used[a] = ipamtypes.AllocationIP{Owner: "db/web-x"}
			}
		})
	}
	version := func(cn *ciliumv2.CiliumNode) *ciliumv2.CiliumNode {
		cn.ResourceVersion = "8"
		return cn
	}
	for name, c := range map[string]struct {
		seen, now *ciliumv2.CiliumNode
		want      error
	}{
		"another address is used":                                   {seen: using("10.0.1.2"), now: using("10.0.1.2")},
		"a further address is used in the meantime":                 {seen: using("10.0.1.2"), now: version(using("10.0.1.2", "10.0.1.3"))},
		"the address is used in the meantime":                       {seen: using("10.0.1.2"), now: version(using("10.0.1.1", "10.0.1.2")), want: ErrChanged},
		"no used map":                                               {seen: using(), now: using()},
		"the agent has reported for the first time in the meantime": {seen: using(), now: version(using("10.0.1.1")), want: ErrChanged},
		"the used map was removed in the meantime":                  {seen: using("10.0.1.2"), now: version(using()), want: ErrChanged},
		"no used map, another client has written in the meantime":   {seen: using(), now: version(using()), want: ErrChanged},
	} {
		t.Run(name, func(t *testing.T) {
			edit := FromCiliumNode(c.seen).Set(addr("10.0.1.1"), mysql0)
			edit.RequireUnused = true
			if _, err := New(newAPI(t, c.now)).ChangeEntries(t.Context(), FromCiliumNode(c.seen), []pool.EntryChange{edit}, false); !errors.Is(err, c.want) || (c.want == nil) != (err == nil) {
				t.Errorf("got error %v, want %v", err, c.want)
			}
		})
	}
}

// TestWriterWithdrawsHandshakes checks that a request with WithdrawHandshakes writes its edits first and then withdraws the
// handshakes of the node, and that other requests withdraw none.
func TestWriterWithdrawsHandshakes(t *testing.T) {
	for _, withdraw := range []bool{true, false} {
		api := newAPI(t, inHandshake(keys{"10.0.1.1": "marked-for-release"}))
		ctx, cancel := context.WithCancel(t.Context())
		w := NewWriter(ctx, New(api), func(string) (pool.NodePool, bool) { return pool.NodePool{}, false })
		err := w.Write(ctx, WriteRequest{Node: "n", WithdrawHandshakes: withdraw, Decide: func(n pool.NodePool) ([]pool.EntryChange, error) {
			return []pool.EntryChange{n.Set(addr("10.0.1.3"), pool.Entry{})}, nil
		}})
		cancel()
		w.Wait()
		n, getErr := New(api).Get(t.Context(), "n")
		patches, left := 1, 1
		if withdraw {
			patches, left = 2, 0
		}
		if err != nil || getErr != nil || api.patches != patches || len(n.Handshakes) != left || len(n.Entries) != 3 {
			t.Errorf("WithdrawHandshakes %t: Write: error %v, Get: error %v, %d patches, pool %+v; want %d patches, %d handshakes and 3 entries", withdraw, err, getErr, api.patches, n, patches, left)
		}
	}
}

// TestStripManagedFields checks that a Client with StripManagedFields removes managedFields with any write of entries, and
// that a request with StripManagedFields causes a write even without edits.
func TestStripManagedFields(t *testing.T) {
	tracked := func() *ciliumv2.CiliumNode {
		return ciliumNode(reports, func(cn *ciliumv2.CiliumNode) {
			cn.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "cilium-agent", Operation: "Update"}}
		})
	}
	none := func(pool.NodePool) ([]pool.EntryChange, error) { return nil, nil }
	claim := func(n pool.NodePool) ([]pool.EntryChange, error) {
		return n.Claim([]netip.Addr{addr("10.0.1.200")}, mysql0)
	}
	for name, c := range map[string]struct {
		// strip is Client.StripManagedFields.
		strip   bool
		request WriteRequest
		patches int
		// stripped is true if the write removes the managedFields.
		stripped bool
	}{
		"with a claim":                 {strip: true, request: WriteRequest{Node: "n", Decide: claim}, patches: 1, stripped: true},
		"without edits":                {strip: true, request: WriteRequest{Node: "n", Decide: none, StripManagedFields: true}, patches: 1, stripped: true},
		"without edits, not requested": {strip: true, request: WriteRequest{Node: "n", Decide: none}},
		"with a claim, not configured": {request: WriteRequest{Node: "n", Decide: claim}, patches: 1},
	} {
		api := newAPI(t, tracked())
		pools := New(api)
		if c.strip {
			pools.StripManagedFields = true
		}
		ctx, cancel := context.WithCancel(t.Context())
		w := NewWriter(ctx, pools, func(string) (pool.NodePool, bool) { return FromCiliumNode(tracked()), true })
		err := w.Write(ctx, c.request)
		cancel()
		w.Wait()
		var cn ciliumv2.CiliumNode
		getErr := api.Get(t.Context(), client.ObjectKey{Name: "n"}, &cn)
		if stripped := len(cn.ManagedFields) == 1 && cn.ManagedFields[0].Manager == ""; err != nil || getErr != nil || stripped != c.stripped || api.patches != c.patches {
			t.Errorf("%s: Write: error %v, Get: error %v, %d patches, managedFields %+v; want %d patches, stripped: %v", name, err, getErr, api.patches, cn.ManagedFields, c.patches, c.stripped)
		}
	}
}

// TestRateLimit checks that no minute has more writes to a node than the rate limit allows, that waiting requests are
// written together, and that neither urgent requests nor requests for other nodes wait.
func TestRateLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t, ciliumNode())
		ctx, cancel := context.WithCancel(t.Context())
		w := NewWriter(ctx, New(api), func(string) (pool.NodePool, bool) { return pool.NodePool{}, false })
		w.RateLimit = NewRateLimiter(clock.RealClock{}, 6)
		began := time.Now()
		var at []time.Duration
		api.fail = func(int) (error, bool) { at = append(at, time.Since(began)); return nil, false }
		flip := func(skipRateLimit bool) error {
			return w.Write(ctx, WriteRequest{Node: "n", SkipRateLimit: skipRateLimit, Decide: func(n pool.NodePool) ([]pool.EntryChange, error) {
				if edit, there := n.Drop(addr("10.0.1.200")); there {
					return []pool.EntryChange{edit}, nil
				}
				return []pool.EntryChange{n.Set(addr("10.0.1.200"), mysql0)}, nil
			}})
		}
		for range 10 {
			if err := flip(false); err != nil {
				t.Fatal(err)
			}
		}
		for i := range at {
			if i+6 < len(at) && at[i+6]-at[i] < time.Minute {
				t.Errorf("writes %d to %d were made within %v, want at most 6 writes per minute; writes at %v", i, i+6, at[i+6]-at[i], at)
			}
		}
		if len(at) != 10 || at[2] != 0 || at[3] == 0 {
			t.Errorf("got %d writes, at %v; want 10 writes, exactly three of them at once", len(at), at)
		}
		if w.Delay("n") == 0 || w.Delay("m") != 0 {
			t.Errorf("got delays %v for n and %v for m, want a delay for n only", w.Delay("n"), w.Delay("m"))
		}
		// A request waits for the rate limit. An urgent request that comes later is written at once, together with the
		// waiting request.
		waited := make(chan error, 1)
		go func() { waited <- flip(false) }()
		synctest.Wait()
		before := time.Now()
		if err := flip(true); err != nil {
			t.Fatal(err)
		}
		if err := <-waited; err != nil || time.Since(before) != 0 || len(at) != 11 {
			t.Errorf("waiting request: error %v; both requests took %v and made %d writes, want 0s and 1 write", err, time.Since(before), len(at)-10)
		}
		cancel()
		w.Wait()
	})
}
