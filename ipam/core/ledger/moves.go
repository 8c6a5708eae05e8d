// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/core/pool"
)

// RemoteAddresses is what the marks at one home say of an owner's addresses that live on another node.
type RemoteAddresses struct {
	// Home is the node whose pool has the marks, At the one that they name.
	Home, At string
	Addrs    []netip.Addr
	// Leaving: the marks say that they are about to leave it.
	Leaving bool
	// Generation is the home's, as it was when it said so.
	Generation int64
	// Barred: the pool at At marks all of them as released, or there is none. Nobody can come to
	// have them there by a decision that was made before.
	Barred bool
	// Listed: the agent at At tells that it has given one of them out. Its pod may run there, whatever became of the
	// entry, and of the pod at the API.
	Listed bool
}

// Away are the absences of an owner's addresses, by home and node.
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
		if c := strings.Compare(a.Home, b.Home); c != 0 {
			return c
		}
		return strings.Compare(a.At, b.At)
	})
	return out
}

// Arriving is what is announced of an owner's addresses in the pools of other nodes than their home,
// by node name.
func (l *Ledger) Arriving(owner string) []NodeAddresses {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.arriving.holdings(owner)
}

// AssumeMoved decides for a pod that its addresses move to a node, or stay where they were moved to.
func (l *Ledger) AssumeMoved(uid types.UID, owner, nodeName string, addrs []netip.Addr) (Claim, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget(uid)
	n, ok := l.node(nodeName)
	if !ok {
		return Claim{}, errNoCiliumNode(nodeName)
	}
	if err := n.carries(owner, addrs); err != nil {
		return Claim{}, fmt.Errorf("node %s can't carry its address: %w", nodeName, err)
	}
	for _, a := range addrs {
		if by, assumed := n.assumed[a]; assumed && by != uid {
			return Claim{}, fmt.Errorf("its address %s on node %s is being claimed for %s", a, nodeName, l.claims[by].Owner)
		}
	}
	c := Claim{Owner: owner, Node: nodeName, Addrs: slices.Clone(addrs)}
	l.take(n, uid, c)
	return c, nil
}
