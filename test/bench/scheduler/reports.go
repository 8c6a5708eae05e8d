// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/test/bench/world"
)

// reportPeriod is the time between two writes of status.ipam by an agent on whose node pods start and stop: the default of
// Cilium's --ipam-cilium-node-update-rate.
const reportPeriod = 15 * time.Second

// reportWriters is the number of reports that are written at the same time.
const reportWriters = 32

// reporter writes status.ipam as the agents of all nodes do, once per reportPeriod and node. The writes of a node
// alternately add one address to its used addresses and remove that address.
type reporter struct {
	world *world.World
	api   client.Client
	// written is the number of successful writes.
	written atomic.Int64

	mu sync.Mutex
	// err is the error of the first write that failed.
	err error
}

// count returns the number of successful writes so far; 0 for a nil reporter.
func (r *reporter) count() int64 {
	if r == nil {
		return 0
	}
	return r.written.Load()
}

// failed returns the error of the first write that failed; nil if none has, or for a nil reporter.
func (r *reporter) failed() error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// run writes until ctx ends. If the API server is too slow for the rate, writes are left out.
func (r *reporter) run(ctx context.Context) {
	var group errgroup.Group
	group.SetLimit(reportWriters)
	tick := time.NewTicker(reportPeriod / time.Duration(r.world.Nodes))
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			_ = group.Wait()
			return
		case <-tick.C:
		}
		group.Go(func() error {
			if err := r.write(ctx, n); err != nil && ctx.Err() == nil {
				r.mu.Lock()
				defer r.mu.Unlock()
				if r.err == nil {
					r.err = err
				}
			}
			return nil
		})
	}
}

// write makes the n-th write of the reporter. The nodes take turns.
func (r *reporter) write(ctx context.Context, n int) error {
	i := n % r.world.Nodes
	used := `{"owner":"team/short-lived"}`
	if n/r.world.Nodes%2 == 1 {
		used = "null"
	}
	node := &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: world.NodeName(i)}}
	patch := fmt.Appendf(nil, `{"status":{"ipam":{"used":{%q:%s}}}}`, r.world.FreeAddress(i), used)
	if err := r.api.Status().Patch(ctx, node, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("patch the status of CiliumNode %s: %w", node.Name, err)
	}
	r.written.Add(1)
	return nil
}
