// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
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
//
// reporter also watches all CiliumNodes as one agent does, and discards the events: Cilium's agents find the other nodes that
// way. So the API server encodes each event in each arm, as in every cluster with Cilium. It encodes an event once for all
// watches.
type reporter struct {
	world *world.World
	api   client.Client
	// http is the client for the watch, and apiServer the address of the API server.
	http      *http.Client
	apiServer string
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

// fail stores err, unless ctx has ended or an earlier error is stored.
func (r *reporter) fail(ctx context.Context, err error) {
	if err == nil || ctx.Err() != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = err
	}
}

// watch watches all CiliumNodes until ctx ends, and discards the events. If the API server ends a watch, the next one begins.
func (r *reporter) watch(ctx context.Context) error {
	for ctx.Err() == nil {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.apiServer+"/apis/cilium.io/v2/ciliumnodes?watch=true&resourceVersion=0", nil)
		if err != nil {
			return fmt.Errorf("make the request that watches CiliumNodes: %w", err)
		}
		response, err := r.http.Do(request)
		if err != nil {
			return fmt.Errorf("watch CiliumNodes: %w", err)
		}
		_, err = io.Copy(io.Discard, response.Body)
		if response.StatusCode != http.StatusOK {
			err = errors.Join(fmt.Errorf("the API server responds %s", response.Status), err)
		}
		if err = errors.Join(err, response.Body.Close()); err != nil {
			return fmt.Errorf("watch CiliumNodes: %w", err)
		}
	}
	return nil
}

// run writes and watches until ctx ends. If the API server is too slow for the rate, writes are left out.
func (r *reporter) run(ctx context.Context) {
	var group errgroup.Group
	group.SetLimit(reportWriters + 1)
	group.Go(func() error {
		r.fail(ctx, r.watch(ctx))
		return nil
	})
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
			r.fail(ctx, r.write(ctx, n))
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
