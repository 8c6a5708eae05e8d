// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"fixedip.io/fixedip/ipam/core/pool"
)

// RemoteAddresses are addresses of an owner that are in the pool of another node, as the Moved entries at one home say.
type RemoteAddresses struct {
	// Home is the node whose pool has the Moved entries, At the node that they name.
	Home, At string
	Addrs    []netip.Addr
	// Leaving is true if the entries say that the addresses are about to leave At.
	Leaving bool
	// Generation is that of the home's CiliumNode.
	Generation int64
	// Barred is true if the pool at At has Cooldown entries for all of them, or if there is no such pool: a move there
	// that was decided before can't be completed.
	Barred bool
	// Listed is true if the agent at At reports one of them as in use. The pod may run there, whatever the entry says.
	Listed bool
}

// Away returns the moved addresses of an owner, by home and node.
func (l *Ledger) Away(owner string) []RemoteAddresses {
	l.mu.RLock()
	defer l.mu.RUnlock()
	var out []RemoteAddresses
	for _, h := range l.away[owner] {
		home := h.Node
		n, _ := l.node(home)
		for _, a := range h.Addrs {
			e := n.pool.Entries[a]
			at, leaves := e.Node, e.Leaving
			i := slices.IndexFunc(out, func(x RemoteAddresses) bool { return x.Home == home && x.At == at && x.Leaving == leaves })
			if i < 0 {
				i, out = len(out), append(out, RemoteAddresses{Home: home, At: at, Leaving: leaves, Generation: n.pool.Generation, Barred: true})
			}
			out[i].Addrs = append(out[i].Addrs, a)
			if there, known := l.node(at); known {
				out[i].Barred = out[i].Barred && there.pool.Entries[a].Kind == pool.Cooldown
				out[i].Listed = out[i].Listed || there.pool.InUse(a)
			}
		}
	}
	slices.SortFunc(out, func(a, b RemoteAddresses) int {
		return cmp.Or(strings.Compare(a.Home, b.Home), strings.Compare(a.At, b.At))
	})
	return out
}

// Arriving returns the addresses of an owner that have MoveTarget entries, by node name.
func (l *Ledger) Arriving(owner string) []NodeAddresses {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.arriving.holdings(owner)
}
