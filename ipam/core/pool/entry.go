// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Kind says what an entry of a pool is for.
type Kind uint8

const (
	// Dynamic entries have no owner: the agent may give the address to any pod.
	Dynamic Kind = iota
	// Owned entries belong to one pod: the agent gives the address to the pod of that name and to no other.
	Owned
	// NodeOwned entries pin an address that the agent itself uses, such as its router address.
	NodeOwned
	// Cooldown entries keep an address that was taken from its pod unused for a while.
	Cooldown
	// Moved entries stand at the home of an address whose entry is in the pool of another node.
	Moved
	// MoveTarget entries stand on the node that an address is about to move to. The address becomes the pod's only after
	// its home says that it is there.
	MoveTarget
	// Foreign entries have an owner that fixedip does not understand. They are never changed.
	Foreign
)

// String names the kind in messages.
func (k Kind) String() string {
	return [...]string{"dynamic", "owned by a pod", "owned by the node", "cooling down", "moved to another node", "the target of a move", "of an unknown owner"}[k]
}

// Purpose says what an Owned entry was made for.
type Purpose uint8

const (
	// UnknownPurpose entries do not say what they are for: as a rule a user wrote them.
	UnknownPurpose Purpose = iota
	// ForWorkload entries are for a pod of a workload.
	ForWorkload
	// ForBarePod entries are for a pod without a controller.
	ForBarePod
	// Unreserved entries are for one pod of a strict node and go with it: the pod has no fixed address.
	Unreserved
)

// Entry is one value of a pool. The zero Entry is a dynamic one. Entries are compared with ==.
type Entry struct {
	Kind Kind
	// Purpose is set for Owned entries.
	Purpose Purpose
	// Leaving is set for Moved entries whose address is about to leave Node. It can no longer become the pod's there.
	Leaving bool
	// Owner is the pod of an Owned entry ("namespace/name"), the agent's name for a NodeOwned one, and the text of a
	// Foreign one. It is empty for all other kinds.
	Owner string
	// Pod is the pod that a marker names: the previous owner of a Cooldown entry, the owner of a Moved or MoveTarget one.
	// It is empty if the marker does not say or can't be read.
	Pod string
	// Workload is "namespace/Kind/name" for Owned entries with the purpose ForWorkload.
	Workload string
	// Node is the node that has the address of a Moved entry. It is empty if the marker can't be read.
	Node string
	// Since is when the address of a Cooldown entry was released, in Unix seconds; 0 counts as long ago.
	Since int64
}

// NodeOwners are the names under which an agent takes addresses for the node itself.
var NodeOwners = [...]string{"router", "health", "ingress"}

// ListsNode reports whether addresses in use include one of the node itself. Key: the address. Value: the owner.
func ListsNode(used map[netip.Addr]string) bool {
	for _, owner := range used {
		if slices.Contains(NodeOwners[:], owner) {
			return true
		}
	}
	return false
}

// ForOwner returns the entry for an owner as a user writes it, without saying what it is for.
func ForOwner(owner string) Entry {
	switch {
	case owner == "":
		return Entry{}
	case slices.Contains(NodeOwners[:], owner):
		return Entry{Kind: NodeOwned, Owner: owner}
	case IsPodKey(owner):
		return Entry{Kind: Owned, Owner: owner}
	}
	return Entry{Kind: Foreign, Owner: owner}
}

// WorkloadKey returns the name of a workload in entries.
func WorkloadKey(namespace, kind, name string) string { return namespace + "/" + kind + "/" + name }

// OwnedEntry returns the entry that gives an address to a pod of a workload.
func OwnedEntry(namespace, podName, kind, workload string) Entry {
	return Entry{Kind: Owned, Purpose: ForWorkload, Owner: OwnerKey(namespace, podName), Workload: WorkloadKey(namespace, kind, workload)}
}

// BarePodEntry returns the entry that gives an address to a pod without a controller.
func BarePodEntry(namespace, podName string) Entry {
	return Entry{Kind: Owned, Purpose: ForBarePod, Owner: OwnerKey(namespace, podName)}
}

// UnreservedEntry returns the entry that gives an address to a pod of a strict node that has no fixed address.
func UnreservedEntry(namespace, podName string) Entry {
	return Entry{Kind: Owned, Purpose: Unreserved, Owner: OwnerKey(namespace, podName)}
}

// CooldownEntry returns the entry of an address that was released at the given time. owner is the pod that had it; it may
// be empty.
func CooldownEntry(owner string, at time.Time) Entry {
	return Entry{Kind: Cooldown, Pod: owner, Since: at.Unix()}
}

// MovedEntry returns the entry at the home of an address of owner whose entry is in the pool of another node.
func MovedEntry(node, owner string) Entry { return Entry{Kind: Moved, Node: node, Pod: owner} }

// LeavingEntry returns the MovedEntry of an address that is about to leave the node.
func LeavingEntry(node, owner string) Entry {
	return Entry{Kind: Moved, Node: node, Pod: owner, Leaving: true}
}

// MoveTargetEntry returns the entry of an address of owner that is about to move to the pool that has the entry.
func MoveTargetEntry(owner string) Entry { return Entry{Kind: MoveTarget, Pod: owner} }

// OwnerKey returns the owner under which the CNI plugin asks for a pod's address.
func OwnerKey(namespace, podName string) string { return namespace + "/" + podName }

// SplitOwnerKey is the inverse of OwnerKey. ok is false for owners that are not pods. No name has a semicolon, which
// separates the fields of a resource.
func SplitOwnerKey(owner string) (namespace, podName string, ok bool) {
	namespace, podName, ok = strings.Cut(owner, "/")
	if !ok || namespace == "" || podName == "" || strings.ContainsAny(namespace, ".;") || strings.ContainsAny(podName, "/;") {
		return "", "", false
	}
	return namespace, podName, true
}

// IsPodKey reports whether an owner is a pod.
func IsPodKey(owner string) bool {
	_, _, ok := SplitOwnerKey(owner)
	return ok
}

// RedactOwner returns owner if it is in the namespace of asks, or no pod, and a neutral phrase otherwise, so that tenants
// can't find out which pod has an address by asking for it.
func RedactOwner(owner, asks string) string {
	namespace, _, pod := SplitOwnerKey(owner)
	own, _, asker := SplitOwnerKey(asks)
	if pod && asker && namespace != own {
		return "a pod of another namespace"
	}
	return owner
}

// OwnedBy reports whether the entry gives its address to the owner, a pod or one of NodeOwners.
func (e Entry) OwnedBy(owner string) bool { return owner != "" && e.Owner == owner }

// NamesPod returns the pod that has the address or that a move is about; empty if there is none. The previous owner of a
// Cooldown entry is not meant.
func (e Entry) NamesPod() string {
	switch e.Kind {
	case Owned:
		return e.Owner
	case Moved, MoveTarget:
		return e.Pod
	}
	return ""
}

// CoolsDownFrom reports whether the address was taken from the pod and cools down.
func (e Entry) CoolsDownFrom(owner string) bool { return e.Kind == Cooldown && e.Pod == owner }

// IsUnreserved reports whether the entry was made for one pod of a strict node that has no fixed address.
func (e Entry) IsUnreserved() bool { return e.Kind == Owned && e.Purpose == Unreserved }

// IsBarePod reports whether the entry was made for a pod without a controller.
func (e Entry) IsBarePod() bool { return e.Kind == Owned && e.Purpose == ForBarePod }

// UnreservedKind is the kind in the WorkloadRef of an Unreserved entry: it is for one Pod.
const UnreservedKind = "Pod"

// WorkloadRef returns the kind and name of the workload that the entry is for. ok is false if it is for none, or does not
// say.
func (e Entry) WorkloadRef() (kind, name string, ok bool) {
	switch e.Purpose {
	case ForWorkload:
		return SplitWorkloadKey(e.Workload)
	case Unreserved:
		_, podName, _ := SplitOwnerKey(e.Owner)
		return UnreservedKind, podName, true
	}
	return "", "", false
}

// SplitWorkloadKey returns the kind and name of a WorkloadKey.
func SplitWorkloadKey(key string) (kind, name string, ok bool) {
	_, rest, _ := strings.Cut(key, "/")
	kind, name, ok = strings.Cut(rest, "/")
	if !ok || kind == "" || name == "" || strings.Contains(name, "/") {
		return "", "", false
	}
	return kind, name, true
}

// SinceTime returns Since as a time; zero if it is 0.
func (e Entry) SinceTime() time.Time {
	if e.Since == 0 {
		return time.Time{}
	}
	return time.Unix(e.Since, 0)
}

// Allocatable reports whether an agent may have given the address to a pod or to its node because of this entry. That of
// a Foreign entry can be restored after a restart of the agent, which does not look at owners then.
func (e Entry) Allocatable() bool {
	return e.Kind != Cooldown && e.Kind != Moved && e.Kind != MoveTarget
}
