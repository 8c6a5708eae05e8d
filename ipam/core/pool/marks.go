package pool

import (
	"strings"
	"time"
)

// A mark is an entry that offers its address to nobody: its owner has a dot before the slash, which
// no namespace has, so that no pod's name ever equals it.
const (
	// releasedOwner marks an address that was taken from its pod and rests before it may be had by
	// another. The resource is the time of the release, from whom it was taken, and whether the agent did
	// not list the address then: "time from namespace/name unlisted".
	releasedOwner = "fixedip.io/released"
	// from comes before the owner key of the pod that an address was taken from.
	from = " from "
	// unlisted ends the resource of an address that the agent did not list when it was released.
	unlisted = " unlisted"
	// awayOwner marks, at its home, an address whose entry is in the pool of another node. The
	// resource names that node and the pod: "node/namespace/name".
	awayOwner = "fixedip.io/away"
	// arrivingOwner announces, in the pool of another node than its home, an address that is about
	// to move there. The resource names the pod: "namespace/name". Only when the mark at home says
	// that the address is here may this become the pod's entry.
	arrivingOwner = "fixedip.io/arriving"
)

// Released is the mark of an address that was given back at the given time.
func Released(at time.Time) Entry {
	return Entry{Owner: releasedOwner, Resource: at.UTC().Format(time.RFC3339)}
}

// ReleasedFrom is Released for an address that was taken from the pod with the given owner key. One of
// that name may have been bound counting on it, which nobody but this mark tells of afterwards.
func ReleasedFrom(owner string, at time.Time) Entry {
	e := Released(at)
	e.Resource += from + owner
	return e
}

// Unlisted is the mark of a released address that the agent did not list as used at that time. Its
// word is late, so that it may have given the address to a pod that was gone before it said so.
// Silence proves nothing about such an address: it is nobody's until it has cooled down.
func (e Entry) Unlisted() Entry {
	e.Resource += unlisted
	return e
}

// Anew is the mark of a released address that begins to rest at the given time once more. The agent lists
// it.
func (e Entry) Anew(at time.Time) Entry {
	if owner, ok := e.ReleasedFrom(); ok {
		return ReleasedFrom(owner, at)
	}
	return Released(at)
}

// ReleasedFrom is the owner key of the pod that a released address was taken from, where the mark says
// so.
func (e Entry) ReleasedFrom() (owner string, ok bool) {
	if e.Owner != releasedOwner {
		return "", false
	}
	_, owner, _ = strings.Cut(strings.TrimSuffix(e.Resource, unlisted), from)
	_, _, ok = SplitOwnerKey(owner)
	return owner, ok
}

// Reusable tells whether the entry is of a released address that another pod may have as soon as the
// agent no longer lists it, where no other is left.
func (e Entry) Reusable() bool {
	return e.Owner == releasedOwner && !strings.HasSuffix(e.Resource, unlisted)
}

// ReleasedAt is the time of the release of an entry that rests. An unreadable time counts as the
// zero time: the address has rested long enough.
func (e Entry) ReleasedAt() (time.Time, bool) {
	if e.Owner != releasedOwner {
		return time.Time{}, false
	}
	text, _, _ := strings.Cut(strings.TrimSuffix(e.Resource, unlisted), from)
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, true
	}
	return at, true
}

// Away is the mark that an address of the pod with the given owner key leaves at its home while the
// pool of another node carries it.
func Away(node, owner string) Entry {
	return Entry{Owner: awayOwner, Resource: node + "/" + owner}
}

// leaving ends the resource of an away mark whose address is about to leave that node, too. From then
// on it can't come to be the pod's there any more.
const leaving = "/leaving"

// Leaving is the mark Away of an address that is about to leave the node.
func Leaving(node, owner string) Entry {
	return Entry{Owner: awayOwner, Resource: node + "/" + owner + leaving}
}

// Leaves tells whether an entry is the mark Leaving. A pod may be called "leaving": the word counts only
// after a node, a namespace and a name.
func (e Entry) Leaves() bool {
	return e.Owner == awayOwner && strings.HasSuffix(e.Resource, leaving) && strings.Count(e.Resource, "/") == 3
}

// AwayAt is the node that the mark of an absent address names, and the owner key of its pod. Both
// are empty where the mark can't be read: the address is kept all the same.
func (e Entry) AwayAt() (node, owner string, ok bool) {
	if e.Owner != awayOwner {
		return "", "", false
	}
	resource := e.Resource
	if e.Leaves() {
		resource = strings.TrimSuffix(resource, leaving)
	}
	node, owner, _ = strings.Cut(resource, "/")
	if _, _, pod := SplitOwnerKey(owner); node == "" || !pod {
		return "", "", true
	}
	return node, owner, true
}

// Arriving is the mark that announces an address of the pod with the given owner key.
func Arriving(owner string) Entry {
	return Entry{Owner: arrivingOwner, Resource: owner}
}

// ArrivingFor is the owner key of the pod whose address a mark announces; empty where it can't be
// read.
func (e Entry) ArrivingFor() (owner string, ok bool) {
	if e.Owner != arrivingOwner {
		return "", false
	}
	if _, _, pod := SplitOwnerKey(e.Resource); !pod {
		return "", true
	}
	return e.Resource, true
}

// Offers tells whether the agent may give the address to somebody: the entry is no mark of ours.
func (e Entry) Offers() bool {
	switch e.Owner {
	case releasedOwner, awayOwner, arrivingOwner:
		return false
	}
	return true
}
