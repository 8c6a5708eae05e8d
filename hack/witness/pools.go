// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package witness

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
)

// Pool counts the entries of the pool of one node.
type Pool struct {
	Node    string
	Subnets []string
	// Fixed counts owned entries, Dynamic dynamic entries, Moving moved and move-target entries, and Other all other
	// entries: cooldown, node-owned and foreign. Used counts the addresses that the agent reports as used.
	Fixed, Dynamic, Other, Moving, Used int
	// Free is the number of usable addresses of the subnets minus the number of entries. A subnet of fewer than 4 addresses
	// counts as 0, and one of more than 2^48 addresses as one of 2^48, so that the sum does not overflow.
	Free int64
}

func poolOf(cn *ciliumv2.CiliumNode) Pool {
	p := Pool{Node: cn.Name, Subnets: cn.Spec.IPAM.PodCIDRs, Used: len(cn.Status.IPAM.Used)}
	for _, e := range cn.Spec.IPAM.Pool {
		switch {
		case e.Owner == "":
			p.Dynamic++
		case pod(e.Owner):
			p.Fixed++
		case e.Owner == "fixedip.io/moved", e.Owner == "fixedip.io/move-target":
			p.Moving++
		default:
			p.Other++
		}
	}
	for _, s := range p.Subnets {
		subnet, err := netip.ParsePrefix(s)
		if host := subnet.Addr().BitLen() - subnet.Bits(); err == nil && host > 1 {
			p.Free += 1<<min(host, 48) - 2
		}
	}
	p.Free -= int64(len(cn.Spec.IPAM.Pool))
	return p
}

func (w *Witness) pools() []Pool {
	var pools []Pool
	for _, name := range slices.Sorted(maps.Keys(w.nodes)) {
		pools = append(pools, poolOf(w.nodes[name]))
	}
	return pools
}

// AwaitPools returns when the condition holds for the pool of each node. It returns at once if the witness knows no CiliumNode.
// If ctx ends first, the error contains the pools.
func (w *Witness) AwaitPools(ctx context.Context, condition func(Pool) bool) error {
	for {
		w.mu.Lock()
		pools, changed := w.pools(), w.changed
		w.mu.Unlock()
		if !slices.ContainsFunc(pools, func(p Pool) bool { return !condition(p) }) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%w; the current state is\n%s", context.Cause(ctx), w.Pools())
		}
	}
}

// Generations returns the generations of all CiliumNodes. Key: the name. Only writes of the spec change a generation.
func (w *Witness) Generations() map[string]int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	generations := map[string]int64{}
	for name, cn := range w.nodes {
		generations[name] = cn.Generation
	}
	return generations
}

// Pools formats the pools of all nodes as a table.
func (w *Witness) Pools() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "NODE\tSUBNET\tFIXED\tDYNAMIC\tOTHER\tMOVING\tIN USE\tWITHOUT ENTRY")
	for _, p := range w.pools() {
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\n", p.Node, strings.Join(p.Subnets, " "), p.Fixed, p.Dynamic, p.Other, p.Moving, p.Used, p.Free)
	}
	t.Flush()
	return b.String()
}
