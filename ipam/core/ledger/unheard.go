package ledger

import (
	"maps"
	"net/netip"

	"fixedip.io/fixedip/ipam/core/pool"
)

// Unheard tells whether any of the addresses was for anybody when its owner came to have it, and the node's agent has
// said nothing since: it may not know whose the address is, and give it to another pod. It knows once it has reported:
// an agent writes its report to the version of the CiliumNode that it has seen, or not at all. Of addresses that had
// their owner when the node was first taken in nothing is known, and they do not count.
func (l *Ledger) Unheard(name string, addrs []netip.Addr) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	n, ok := l.node(name)
	if !ok {
		return false
	}
	for _, a := range addrs {
		if _, unheard := n.unheard[a]; unheard {
			return true
		}
	}
	return false
}

// unheardOf is what the unheard addresses of a node are after another version of its pool; nil: none.
func unheardOf(unheard map[netip.Addr]struct{}, before, after pool.Node) map[netip.Addr]struct{} {
	if before.UID != after.UID {
		return nil
	}
	var left map[netip.Addr]struct{}
	leave := func(a netip.Addr) {
		if left == nil {
			left = map[netip.Addr]struct{}{}
		}
		left[a] = struct{}{}
	}
	if len(unheard) > 0 && maps.Equal(before.Used, after.Used) {
		for a := range unheard {
			if after.Entries[a].Owner == before.Entries[a].Owner {
				leave(a)
			}
		}
	}
	for a, was := range before.Entries {
		if _, _, owned := after.Entries[a].Pod(); owned && was.Dynamic() {
			leave(a)
		}
	}
	return left
}
