package pool

import "net/netip"

// TakeOver makes the edits that give the addresses of a pod that is gone to the pod of an entry, for
// the same workload: all of them or, where that can't be, none and ErrTaken. What the former holder
// does not have is claimed. An address that the agent still lists is not taken over: it would give
// it out a second time. Nor is one that it comes to list before the write.
func (n Node) TakeOver(addrs []netip.Addr, from string, entry Entry) ([]Edit, error) {
	var edits []Edit
	for _, a := range addrs {
		now, exists := n.Entries[a]
		if !exists || now.Owner != from {
			continue
		}
		switch user, used := n.Used[a]; {
		case now.Resource != entry.Resource:
			return nil, takenf("%s on node %s is kept for %s", a, n.Name, now.Resource)
		case used && user != entry.Owner:
			return nil, takenf("%s on node %s is still used by %s", a, n.Name, Told(user, entry.Owner))
		}
		edits = append(edits, n.Set(a, entry))
	}
	claimed, err := n.With(edits).Claim(addrs, entry)
	if err != nil {
		return nil, err
	}
	edits = append(edits, claimed...)
	for i, e := range edits {
		edits[i].Unlisted = !n.InUse(e.Addr)
	}
	return edits, nil
}
