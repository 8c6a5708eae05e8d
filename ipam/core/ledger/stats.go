// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

// Size is how much a ledger holds.
type Size struct {
	// Nodes have a CiliumNode.
	Nodes int
	// Entries of their pools name a pod as the owner.
	Entries int
	// Claims are in flight.
	Claims int
}

// Size counts what is in the ledger now. It looks at every owner: ask it now and then, not in the
// path of a pod.
func (l *Ledger) Size() Size {
	l.mu.RLock()
	defer l.mu.RUnlock()
	s := Size{Claims: len(l.claims)}
	l.nodes.Range(func(any, any) bool {
		s.Nodes++
		return true
	})
	for _, held := range l.owners {
		for _, h := range held {
			s.Entries += len(h.Addrs)
		}
	}
	return s
}
