// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"maps"
	"net/netip"
	"time"

	"fixedip.io/fixedip/ipam/core/pool"
)

// Unheard tells whether any of the addresses could be had by anybody when its owner came to have it, and the node's agent
// has said nothing since: it may not know whose the address is, and give it to another pod. It knows once it has
// reported: an agent writes its report to the version of the CiliumNode that it has seen, or not at all. since is when
// the last of them became its owner's; zero where an entry does not say.
//
// What was said before the node was first taken in is not known. Of the addresses that had their owner by then those
// count whose entries say since when.
func (l *Ledger) Unheard(name string, addrs []netip.Addr) (since time.Time, unheard bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	n, ok := l.node(name)
	if !ok {
		return time.Time{}, false
	}
	for _, a := range addrs {
		if _, is := n.unheard[a]; !is {
			continue
		}
		unheard = true
		at := n.pool.Entries[a].Since
		if at == 0 {
			return time.Time{}, true
		}
		if t := time.Unix(at, 0); t.After(since) {
			since = t
		}
	}
	return since, unheard
}

// unheardOf is what the unheard addresses of a node are after another version of its pool; nil: none.
func unheardOf(unheard map[netip.Addr]struct{}, before, after pool.Node) map[netip.Addr]struct{} {
	if before.UID != after.UID {
		before, unheard = pool.Node{}, nil
	}
	var left map[netip.Addr]struct{}
	silent := maps.Equal(before.Used, after.Used)
	for a, e := range after.Entries {
		if e.Kind != pool.Owned {
			continue
		}
		was, stood := before.Entries[a]
		_, remains := unheard[a]
		remains = remains && silent && was.OwnedBy(e.Owner)
		if remains || stood && was.Kind == pool.Dynamic || e.Since != 0 && e.Since != was.Since {
			if left == nil {
				left = map[netip.Addr]struct{}{}
			}
			left[a] = struct{}{}
		}
	}
	return left
}
