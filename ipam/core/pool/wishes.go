package pool

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"fixedip.io/fixedip/ipam/core/address"
)

// ErrTaken: an address can't be claimed, since it has another holder or is in no subnet of the node.
var ErrTaken = errors.New("the address has another holder")

// taken says who or what has an address. It is ErrTaken, in words that people can do more with.
type taken string

func (t taken) Error() string { return string(t) }

func (t taken) Is(target error) bool { return target == ErrTaken }

func takenf(format string, args ...any) error { return taken(fmt.Sprintf(format, args...)) }

// Claim makes the edits that give addresses to the pod of an owned entry: all of them or, where
// one is somebody else's, none and ErrTaken. None are needed where the entries stand. A pod that
// has another address of the family on the node is refused as well: the agent would choose between
// the two as it pleases. That is certain only where the edits are applied to the very pool that
// they were made from.
func (n Node) Claim(addrs []netip.Addr, entry Entry) ([]Edit, error) {
	if err := n.Another(entry.Owner, addrs); err != nil {
		return nil, err
	}
	var edits []Edit
	for _, a := range addrs {
		now, exists := n.Entries[a]
		user, used := n.Used[a]
		switch {
		case exists && now.Owner == entry.Owner:
			continue
		case !n.Home(a):
			return nil, takenf("%s is in no subnet of node %s any more, which has %s", a, n.Name, cmp.Or(strings.Join(n.PodCIDRs, ", "), "none"))
		case exists && now.Dynamic():
			return nil, takenf("%s on node %s is a dynamic entry, which any pod may be using", a, n.Name)
		case exists && !now.Reusable():
			return nil, takenf("%s on node %s belongs to %s", a, n.Name, Told(now.Owner, entry.Owner))
		case used && user != entry.Owner:
			return nil, takenf("%s on node %s is used by %s", a, n.Name, Told(user, entry.Owner))
		case n.Withheld(a):
			return nil, takenf("%s on node %s is being taken out of the pool, which the agent has yet to confirm", a, n.Name)
		}
		edits = append(edits, n.Set(a, entry))
	}
	return edits, nil
}

// Another is the error where the owner has another address on the node in a family of the given ones.
func (n Node) Another(owner string, addrs []netip.Addr) error {
	for a, e := range n.Entries {
		if e.Owner == owner && !slices.Contains(addrs, a) && slices.ContainsFunc(addrs, func(want netip.Addr) bool { return want.BitLen() == a.BitLen() }) {
			return takenf("%s has %s on node %s already", owner, a, n.Name)
		}
	}
	return nil
}

// Elsewhere is the error where the owner of a claim has addresses on another node as well.
func Elsewhere(owner, node string, addrs []netip.Addr) error {
	return takenf("%s has %s on node %s as well", owner, address.Join(addrs), node)
}

// Release makes the edits that take addresses from an owner, had or announced: the given ones, or all
// where none are given. The addresses rest: who comes under the same name no longer gets them, and
// neither does anybody else for now.
func (n Node) Release(owner string, addrs []netip.Addr, at time.Time) []Edit {
	var edits []Edit
	for a, e := range n.Entries {
		arriving, _ := e.ArrivingFor()
		if (e.Owner == owner || arriving == owner) && (len(addrs) == 0 || slices.Contains(addrs, a)) {
			mark := ReleasedFrom(owner, at)
			if !n.InUse(a) {
				mark = mark.Unlisted()
			}
			edits = append(edits, n.Set(a, mark))
		}
	}
	return edits
}

// With is the node as it is after the edits, on a map of its own.
func (n Node) With(edits []Edit) Node {
	entries := make(map[netip.Addr]Entry, len(n.Entries)+len(edits))
	for a, e := range n.Entries {
		entries[a] = e
	}
	for _, e := range edits {
		if e.To == nil {
			delete(entries, e.Addr)
		} else {
			entries[e.Addr] = *e.To
		}
	}
	n.Entries = entries
	return n
}
