// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ciliumpool

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/core/pool"
)

// probeOwner is the owner of a probe in status.ipam.used. It has a dot before the slash, which no namespace has.
const probeOwner = "fixedip.io/agent-barrier"

// Ask writes a probe into the status of a CiliumNode, in one patch, and returns the node as it is with the probe: the
// agent answers by removing it (see package agentview). Probes of earlier questions that n still lists are removed by
// the same patch.
//
// The patch has two keys. The one in release-ips, an address that is released and not in the pool, makes the agent write
// its status (Cilium fact 24). The one in used disappears with that write, since the agent builds used from its allocators,
// and also if a change of the node's labels has made the agent forget what it was about to do about the first key.
//
// ErrChanged, ErrGone and ErrRefused mean that nothing was written; after any other error the probe may exist.
func (p *Client) Ask(ctx context.Context, n pool.NodePool, probe netip.Addr) (pool.NodePool, error) {
	kind, content := types.JSONPatchType, encodeProbe(n, probe)
	if !n.HasUsed {
		kind, content = types.MergePatchType, encodeFirstProbe(n, probe)
	}
	after, err := p.patch(ctx, n, kind, content, true)
	if err == nil && !slices.Contains(after.Probes, probe) {
		// A probe that was not stored would look like one that is answered.
		return pool.NodePool{}, fmt.Errorf("CiliumNode %s: the API server did not store the probe %s; check for a webhook or policy that changes the status of CiliumNodes", n.Name, probe)
	}
	return after, err
}

// encodeProbe returns the JSON patch for a probe beside the report of the agent.
func encodeProbe(n pool.NodePool, probe netip.Addr) any {
	ops := statusOperations(n)
	for _, old := range n.Probes {
		path := usedPath + "/" + old.String()
		ops = append(ops, operation{"test", path + "/owner", probeOwner}, operation{"remove", path, nil})
	}
	return append(ops,
		operation{"add", releaseIPsPath + "/" + probe.String(), pool.Released},
		operation{"add", usedPath + "/" + probe.String(), ipamtypes.AllocationIP{Owner: probeOwner}})
}

// encodeFirstProbe returns the merge patch for a probe where there is no report: a running agent reports to a CiliumNode
// that was made again only when it has a reason. A JSON patch can't make a status that may or may not exist.
func encodeFirstProbe(n pool.NodePool, probe netip.Addr) any {
	return map[string]any{
		"metadata": map[string]any{"resourceVersion": n.ResourceVersion},
		"status": map[string]any{"ipam": map[string]any{
			"release-ips": map[string]any{probe.String(): pool.Released},
			"used":        ipamtypes.AllocationMap{probe.String(): {Owner: probeOwner}},
		}},
	}
}

// Ask is Client.Ask, and counts as a write of the node: ask when Delay is 0.
func (w *Writer) Ask(ctx context.Context, n pool.NodePool, probe netip.Addr) (pool.NodePool, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	w.RateLimit.Spend(n.Name)
	after, err := w.pools.Ask(ctx, n, probe)
	w.observe(1, err)
	return after, err
}

// Get is Client.Get.
func (w *Writer) Get(ctx context.Context, node string) (pool.NodePool, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	return w.pools.Get(ctx, node)
}
