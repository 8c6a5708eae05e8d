// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ciliumpool

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"fixedip.io/fixedip/ipam/core/pool"
)

// TestOnPatch checks that OnPatch is called once for each patch that was applied or failed with a conflict, with the number of
// requests of the patch, and not for a patch with another result.
func TestOnPatch(t *testing.T) {
	dynamic := ipamtypes.AllocationMap{"10.0.1.1": {}}
	for name, c := range map[string]struct {
		// pool is the pool at the API server. The cache of the Writer has the pool dynamic.
		pool ipamtypes.AllocationMap
		fail func(n int) (error, bool)
		// pods is the number of claims, for the addresses from 10.0.1.200 on. The patch of the first claim is in flight when the
		// other claims arrive.
		pods int
		want []string
	}{
		"one claim":                       {pool: dynamic, pods: 1, want: []string{"wrote 1"}},
		"a batch after one claim":         {pool: dynamic, pods: 4, want: []string{"wrote 1", "wrote 3"}},
		"an outdated cache":               {pods: 1, want: []string{"conflicted", "wrote 1"}},
		"a conflict":                      {pool: dynamic, fail: func(n int) (error, bool) { return only(n == 1, apierrors.NewConflict(resource, "n", nil)), false }, pods: 1, want: []string{"conflicted", "wrote 1"}},
		"an address that another pod got": {pool: ipamtypes.AllocationMap{"10.0.1.1": {}, "10.0.1.200": {Owner: "db/other-0"}}, pods: 1, want: []string{"conflicted"}},
		"a lost response":                 {pool: dynamic, fail: func(n int) (error, bool) { return only(n == 1, context.DeadlineExceeded), true }, pods: 1},
		"an unavailable API server":       {pool: dynamic, fail: func(int) (error, bool) { return apierrors.NewServiceUnavailable("down"), false }, pods: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newAPI(t, ciliumNode(reports, func(cn *ciliumv2.CiliumNode) { cn.Spec.IPAM.Pool = c.pool }))
				first := make(chan struct{})
				api.fail = func(n int) (error, bool) {
					if n == 1 {
						<-first
					}
					if c.fail == nil {
						return nil, false
					}
					return c.fail(n)
				}
				ctx, cancel := context.WithCancel(t.Context())
				w := NewWriter(ctx, New(api), func(string) (pool.NodePool, bool) {
					return FromCiliumNode(ciliumNode(reports, func(cn *ciliumv2.CiliumNode) { cn.Spec.IPAM.Pool = dynamic })), true
				})
				var mu sync.Mutex
				var lines []string
				w.OnPatch = func(requests int, conflict bool) {
					mu.Lock()
					defer mu.Unlock()
					if conflict {
						lines = append(lines, "conflicted")
					} else {
						lines = append(lines, fmt.Sprintf("wrote %d", requests))
					}
				}
				var requests sync.WaitGroup
				for i := range c.pods {
					requests.Go(func() {
						owner := pool.OwnedEntry("db", fmt.Sprintf("mysql-%d", i), "StatefulSet", "mysql")
						// Other tests check the result of Write.
						_ = w.Write(ctx, WriteRequest{Node: "n", Decide: func(n pool.NodePool) ([]pool.EntryChange, error) {
							return n.Claim([]netip.Addr{addr(fmt.Sprintf("10.0.1.%d", 200+i))}, owner)
						}})
					})
					synctest.Wait()
				}
				close(first)
				requests.Wait()
				cancel()
				w.Wait()
				if !slices.Equal(lines, c.want) {
					t.Errorf("OnPatch was called for %q, want %q", lines, c.want)
				}
			})
		})
	}
}
