package plan

import (
	"net/netip"
	"slices"
)

// Contest is that an address can't be taken from an identity yet: another pod has it, or may come to have it, as an
// agent did that had not seen when the identity came to keep it. Until then its entry is what has the next pod of the
// name wait. Without that one would be placed on the node, and get the address from an agent that goes by the entry that
// it knows, whoever has it.
type Contest struct {
	Addr netip.Addr
	// User is the pod that has it, as its agent names it; empty: none is known.
	User string
	// Why says who has it or may have it, for people.
	Why string
}

// contest is why any of the addresses can't be taken from the identity; empty: all can.
func (s Situation) contest(addrs []netip.Addr) string {
	i := slices.IndexFunc(s.Contested, func(c Contest) bool { return slices.Contains(addrs, c.Addr) })
	if i < 0 {
		return ""
	}
	return s.Contested[i].Why
}

// contestBut is contest for all that the identity holds but on one node, which may be none.
func (s Situation) contestBut(but string) string {
	for _, h := range s.Held {
		if why := s.contest(h.Addrs); h.Node != but && why != "" {
			return why
		}
	}
	return ""
}

// releaseAll is the next step of taking everything from an identity.
func releaseAll(s Situation) Next {
	next, ok := release(s, "")
	if why := s.contestBut(""); !ok && why != "" {
		return Next{At: s.Now.Add(lookAgain), Why: why}
	}
	return next
}
