package pool

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
)

var (
	// ErrUnfenced: the pod that had the addresses may still run with them.
	ErrUnfenced = errors.New("its old pod may still run")
	// ErrUndecided: the home of the addresses does not say what the step of a move relies on.
	ErrUndecided = errors.New("the home of the address says otherwise")
)

// Move carries the addresses of one pod from the pool of one node to that of another. Its home
// decides over an address wherever it lives, so a move is decided there, by one patch, and what
// the other two pools say only follows it. The steps, each one write to one pool:
//
//	Announce  at To: nobody -> arriving. From here on whoever looks knows where it may go.
//	Depart    at Home, where that is not From: away at From -> leaving it.
//	Leave     at From, where that is not the home: the pod's -> released.
//	Turn      at Home: the pod's, or leaving From, -> away at To; or the pod's, where To is home.
//	Settle    at To: arriving -> the pod's, once Home was seen to say that it is there.
//
// No step offers an address that another pool may still offer. Settle gives it only where its pool is
// the same as before the home was seen to say "away here". Depart ends that for From, and Leave changes
// that pool, so that after both nobody can settle there; and Turn is made only where the home is the same
// as before that Leave was looked after.
//
// Each step is idempotent, and after a crash anywhere the next who moves the pod goes on from what the
// pools say, to the same node or to another: an announcement binds nobody.
type Move struct {
	// Owner is the pod as pool entries name it, and Entry the one that gives it an address.
	Owner string
	Entry Entry
	// Addrs are at most one of each family, all with one home.
	Addrs []netip.Addr
	// Home is the node whose subnets have the addresses, From where they live now, To where they go.
	// From and To are the same where a move that was interrupted after Turn is brought to its end.
	Home, From, To string
	// Fence is what is known of the pod that had the addresses on From.
	Fence Fence
}

// Fence is what is known of a pod that had addresses on a node, and is gone from the API.
type Fence int

const (
	// Unfenced: the node is not ready. What its agent said last proves nothing.
	Unfenced Fence = iota
	// Unheard: the node is ready, and its agent has not had the time to say what it has. Its silence
	// proves nothing.
	Unheard
	// Reported: the node is ready, and what its agent does not list is not in use.
	Reported
	// Down: the node is gone, or somebody has sworn that nothing runs there.
	Down
)

// Keeps tells why an address of a node may still be in use there; nil: it is not.
func (f Fence) Keeps(n Node, a netip.Addr) error {
	switch {
	case f == Unfenced:
		return fmt.Errorf("node %s is not ready: %w", n.Name, ErrUnfenced)
	case f == Unheard && !n.InUse(a):
		return fmt.Errorf("the agent on node %s has not had the time to list %s: %w", n.Name, a, ErrUnfenced)
	case f != Down && n.InUse(a):
		return fmt.Errorf("%s is listed as used on node %s: %w", a, n.Name, ErrUnfenced)
	}
	return nil
}

// Announce makes the edits at To, which is not the home.
func (m Move) Announce(n Node) ([]Edit, error) {
	if err := n.Carries(m.Owner, m.Addrs); err != nil {
		return nil, err
	}
	var edits []Edit
	for _, a := range m.Addrs {
		if _, exists := n.Entries[a]; !exists {
			edits = append(edits, n.Set(a, Arriving(m.Owner)))
		}
	}
	return edits, nil
}

// Depart makes the edits at the home, where that is not From.
func (m Move) Depart(n Node) ([]Edit, error) { return n.Depart(m.Owner, m.From, m.Addrs) }

// Depart makes the edits at the home that announce that an owner's addresses leave a node that they
// were moved to.
func (n Node) Depart(owner, from string, addrs []netip.Addr) ([]Edit, error) {
	var edits []Edit
	for _, a := range addrs {
		switch now := n.Entries[a]; now {
		case Leaving(from, owner):
		case Away(from, owner):
			edits = append(edits, n.Set(a, Leaving(from, owner)))
		default:
			return nil, fmt.Errorf("%s on node %s is not marked as away on node %s but as %q %q: %w", a, n.Name, from, now.Owner, now.Resource, ErrUndecided)
		}
	}
	return edits, nil
}

// Leave makes the edits at From, where that is not the home. An address that is not there gets the
// mark all the same: who was about to settle it there finds the pool changed.
func (m Move) Leave(n Node, at time.Time) ([]Edit, error) {
	var edits []Edit
	for _, a := range m.Addrs {
		now, exists := n.Entries[a]
		_, released := now.ReleasedAt()
		arriving, _ := now.ArrivingFor()
		switch {
		case released:
			if from, ok := now.ReleasedFrom(); ok && from == m.Owner {
				// It was the pod's here, which may run on: whoever took it did not ask for that.
				if err := m.Fence.Keeps(n, a); err != nil {
					return nil, err
				}
			}
			continue
		case exists && now.Owner != m.Owner && arriving != m.Owner:
			return nil, takenf("%s on node %s belongs to %q", a, n.Name, Told(now.Owner, m.Owner))
		case now.Owner == m.Owner:
			// What never was the pod's here, it can't be running with.
			if err := m.Fence.Keeps(n, a); err != nil {
				return nil, err
			}
			edits = append(edits, m.taken(n.Set(a, Released(at))))
			continue
		}
		edits = append(edits, n.Set(a, Released(at)))
	}
	return edits, nil
}

// taken is an edit that takes an address from the pod that had it on From. What an agent lists counts up to
// the write, except where nobody is there to say so: then the list is an old one.
func (m Move) taken(e Edit) Edit {
	e.Unlisted = m.Fence != Down
	return e
}

// Turn makes the edits at the home. It decides the move. Where From is not the home, write them only
// where the home is unchanged as a whole since before From was seen to be left.
func (m Move) Turn(n Node) ([]Edit, error) {
	to := Away(m.To, m.Owner)
	if m.To == m.Home {
		to = m.Entry
		if err := n.Another(m.Owner, m.Addrs); err != nil {
			return nil, err
		}
	}
	var edits []Edit
	for _, a := range m.Addrs {
		now, exists := n.Entries[a]
		_, released := now.ReleasedAt()
		user, used := n.Used[a]
		switch {
		case !n.Home(a):
			return nil, fmt.Errorf("%s is in no subnet of node %s (%v) any more: %w", a, n.Name, n.PodCIDRs, ErrUndecided)
		case exists && (now == to || m.To == m.Home && now.Owner == m.Owner):
			continue
		case m.From != m.Home && (!exists || now != Leaving(m.From, m.Owner)):
			return nil, fmt.Errorf("%s on node %s is not marked as leaving node %s but as %q %q: %w", a, n.Name, m.From, now.Owner, now.Resource, ErrUndecided)
		case m.From == m.Home && exists && !released && now.Owner != m.Owner:
			return nil, takenf("%s on node %s belongs to %q", a, n.Name, Told(now.Owner, m.Owner))
		case m.From == m.Home && used && user != m.Owner:
			return nil, takenf("%s on node %s is used by %s", a, n.Name, Told(user, m.Owner))
		case m.From == m.Home:
			if err := m.Fence.Keeps(n, a); err != nil {
				return nil, err
			}
			edits = append(edits, m.taken(n.Set(a, to)))
			continue
		}
		edits = append(edits, n.Set(a, to))
	}
	return edits, nil
}

// Turned tells whether the home, as it is, says that the addresses live on To.
func (m Move) Turned(home Node) error {
	for _, a := range m.Addrs {
		if now := home.Entries[a]; !home.Home(a) || now != Away(m.To, m.Owner) {
			return fmt.Errorf("%s on node %s is not marked as away on node %s but as %q %q: %w", a, home.Name, m.To, now.Owner, now.Resource, ErrUndecided)
		}
	}
	return nil
}

// Settle makes the edits at To, which is not the home. Write them only where the pool is unchanged
// as a whole since before the home was seen to say that the move is decided (Turned).
func (m Move) Settle(n Node) ([]Edit, error) {
	if err := n.Carries(m.Owner, m.Addrs); err != nil {
		return nil, err
	}
	var edits []Edit
	for _, a := range m.Addrs {
		now, exists := n.Entries[a]
		if !exists {
			return nil, fmt.Errorf("%s has not been announced on node %s: %w", a, n.Name, ErrUndecided)
		}
		if now.Owner != m.Owner {
			edits = append(edits, n.Set(a, m.Entry))
		}
	}
	return edits, nil
}

// Carries tells why a node can't carry addresses of the owner that are at home on another; nil where
// it can, or does. An address that rests there was the owner's before, and its old pod's last traces
// may still be there.
func (n Node) Carries(owner string, addrs []netip.Addr) error {
	if err := n.Another(owner, addrs); err != nil {
		return err
	}
	for _, a := range addrs {
		now, exists := n.Entries[a]
		_, released := now.ReleasedAt()
		arriving, _ := now.ArrivingFor()
		user, used := n.Used[a]
		switch {
		case released:
			return takenf("%s still rests on node %s", a, n.Name)
		case exists && now.Owner != owner && arriving != owner:
			return takenf("%s on node %s belongs to %q", a, n.Name, Told(now.Owner, owner))
		case used && user != owner:
			return takenf("%s on node %s is used by %s", a, n.Name, Told(user, owner))
		}
	}
	return nil
}

// Unmoved takes a Turn or a Leave back: the entries that stand as the edits made them become what
// they were.
func (n Node) Unmoved(made []Edit) []Edit {
	var undo []Edit
	for _, e := range made {
		now, exists := n.Entries[e.Addr]
		switch {
		case !exists || e.To == nil || now != *e.To:
		case e.From == nil:
			undo = append(undo, Edit{Addr: e.Addr, From: &now})
		default:
			undo = append(undo, n.Set(e.Addr, *e.From))
		}
	}
	return undo
}

// Bar makes the edits that mark addresses as released on a node that an owner's addresses were moved
// to, whether or not they have arrived: whoever is about to settle them there finds the pool changed.
func (n Node) Bar(owner string, addrs []netip.Addr, at time.Time) []Edit {
	var edits []Edit
	for _, a := range addrs {
		now, exists := n.Entries[a]
		arriving, _ := now.ArrivingFor()
		if !exists || now.Owner == owner || arriving == owner {
			edits = append(edits, n.Set(a, Released(at)))
		}
	}
	return edits
}

// Return makes the edits at the home that end the absence of an owner's addresses on another node:
// they rest at home, and are nobody's until they have cooled down, since the agent there has never listed them, and that
// on the other node may be late. An address that is elsewhere by now, or is not about to leave, is left alone. Write
// them only where the home is unchanged as a whole since before the other node was seen to bar them.
func (n Node) Return(owner, from string, addrs []netip.Addr, at time.Time) []Edit {
	var edits []Edit
	for _, a := range addrs {
		if now, exists := n.Entries[a]; exists && now == Leaving(from, owner) {
			edits = append(edits, n.Set(a, Released(at).Unlisted()))
		}
	}
	return edits
}
