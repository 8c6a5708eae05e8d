// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

// Size is the number of objects in a ledger.
type Size struct {
	// Nodes have a CiliumNode.
	Nodes int
	// Entries of their pools name a pod as the owner.
	Entries int
	// Claims are in flight.
	Claims int
}

// Size counts the objects in the ledger. It looks at every owner, so do not call it while a pod is scheduled.
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
