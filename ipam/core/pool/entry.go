// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unique"
)

// Kind is the kind of a pool entry. It decides how the address may be used: see docs/glossary.md.
type Kind uint8

const (
	// Dynamic entries have no owner: the agent may give the address to any pod.
	Dynamic Kind = iota
	// Owned entries belong to one pod: the agent gives the address only to the pod with that name.
	Owned
	// NodeOwned entries belong to the node itself, for example the router address of the agent.
	NodeOwned
	// Cooldown entries mean that the address was released or withdrawn. No pod gets it until the cooldown ends.
	Cooldown
	// Moved entries are in the pool of the home node. They mean that the pool of another node carries the address, or will
	// carry it when the move is complete.
	Moved
	// MoveTarget entries are in the pool that an address is about to move to. They become Owned only after the entry at the
	// home names that node (Moved).
	MoveTarget
	// Foreign entries have an owner text that fixedip does not know. They are never changed.
	Foreign
)

// String returns the text for the kind in messages.
func (k Kind) String() string {
	return [...]string{"dynamic", "owned by a pod", "owned by the node", "cooling down", "moved to another node", "the target of a move", "of an unknown owner"}[k]
}

// Purpose is the kind of pod that an Owned entry is for, according to the resource of the entry.
type Purpose uint8

const (
	// UnknownPurpose entries have no resource that fixedip can read. Usually a user wrote them.
	UnknownPurpose Purpose = iota
	// ForWorkload entries are for a pod of a workload.
	ForWorkload
	// ForBarePod entries are for a pod without a controller.
	ForBarePod
	// Unreserved entries are for a pod without a fixed address on a strict node. They are released when no pod needs them.
	Unreserved
)

// Entry is the value of a pool entry. The zero Entry is a dynamic one. Entries are compared with ==. An Entry takes 16 bytes,
// because a large cluster has hundreds of thousands, most of which are dynamic.
type Entry struct {
	Kind Kind
	// Purpose is set for Owned entries.
	Purpose Purpose
	// Leaving is true for Moved entries whose address is about to leave Node: a move to Node can no longer be completed. It
	// is also true for the Cooldown entries that WithdrawnEntry returns.
	Leaving bool
	// details is the zero Handle if all details are zero. It is never a Handle of zero details, so that == compares entries.
	details unique.Handle[details]
}

// details are the texts and the time of an entry. Entries with equal details share them.
type details struct {
	owner, pod, workload, node string
	since                      int64
}

// with returns the entry with other details.
func (e Entry) with(d details) Entry {
	e.details = unique.Handle[details]{}
	if d != (details{}) {
		e.details = unique.Make(d)
	}
	return e
}

func (e Entry) get() details {
	if e.details == (unique.Handle[details]{}) {
		return details{}
	}
	return e.details.Value()
}

// Owner returns the pod of an Owned entry ("namespace/name"), one of NodeOwners for a NodeOwned entry, and the owner text of a
// Foreign entry. It is empty for all other kinds.
func (e Entry) Owner() string { return e.get().owner }

// Pod returns the previous owner of a Cooldown entry, and the owner of the address of a Moved or MoveTarget entry. It is empty
// for all other kinds, and if the resource does not name a pod or can't be read.
func (e Entry) Pod() string { return e.get().pod }

// Workload returns "namespace/Kind/name" for Owned entries with the purpose ForWorkload. It is empty for all other entries.
func (e Entry) Workload() string { return e.get().workload }

// Node returns the node whose pool carries the address of a Moved entry, or is about to. It is empty for all other kinds, and
// if the resource can't be read.
func (e Entry) Node() string { return e.get().node }

// Since returns the time at which the cooldown of a Cooldown entry began or was last restarted, or at which the address was
// withdrawn (WithdrawnEntry), in Unix seconds. 0 means unknown and counts as long ago.
func (e Entry) Since() int64 { return e.get().since }

// Equal reports whether e == other. Package cmp needs it in tests, because details is not exported.
func (e Entry) Equal(other Entry) bool { return e == other }

// String returns all fields of the entry, for test failures.
func (e Entry) String() string {
	return fmt.Sprintf("{%s, purpose %d, leaving %t, %+v}", e.Kind, e.Purpose, e.Leaving, e.get())
}

// NodeOwners are the owners under which an agent allocates addresses for the node itself (Cilium fact 6).
var NodeOwners = [...]string{"router", "health", "ingress"}

// ReportsNode reports whether used contains an address of the node itself. Key of used: the address. Value: the owner.
func ReportsNode(used map[netip.Addr]string) bool {
	for _, owner := range used {
		if slices.Contains(NodeOwners[:], owner) {
			return true
		}
	}
	return false
}

// ForOwner returns the entry with an owner text and an empty resource. An Owned entry has the purpose UnknownPurpose. The
// owner texts of Cooldown, Moved and MoveTarget entries, which only package ciliumpool knows, result in a Foreign entry.
func ForOwner(owner string) Entry {
	switch {
	case owner == "":
		return Entry{}
	case slices.Contains(NodeOwners[:], owner):
		return Entry{Kind: NodeOwned}.with(details{owner: owner})
	case IsPodKey(owner):
		return Entry{Kind: Owned}.with(details{owner: owner})
	}
	return Entry{Kind: Foreign}.with(details{owner: owner})
}

// WorkloadKey returns the text that names a workload in entries: "namespace/Kind/name". kind is the label of the kind
// (identity.Label).
func WorkloadKey(namespace, kind, name string) string { return namespace + "/" + kind + "/" + name }

// OwnedEntry returns the entry that gives an address to a pod of a workload. kind is as for WorkloadKey, workload the name
// of the workload.
func OwnedEntry(namespace, podName, kind, workload string) Entry {
	return Entry{Kind: Owned, Purpose: ForWorkload}.with(details{owner: OwnerKey(namespace, podName), workload: WorkloadKey(namespace, kind, workload)})
}

// BarePodEntry returns the entry that gives an address to a pod without a controller.
func BarePodEntry(namespace, podName string) Entry {
	return Entry{Kind: Owned, Purpose: ForBarePod}.with(details{owner: OwnerKey(namespace, podName)})
}

// UnreservedEntry returns the entry that gives an address to a pod without a fixed address on a strict node.
func UnreservedEntry(namespace, podName string) Entry {
	return Entry{Kind: Owned, Purpose: Unreserved}.with(details{owner: OwnerKey(namespace, podName)})
}

// CooldownEntry returns the entry of an address whose cooldown began at the given time. owner is the pod that had the
// address; empty: not recorded.
func CooldownEntry(owner string, at time.Time) Entry {
	return Entry{Kind: Cooldown}.with(details{pod: owner, since: at.Unix()})
}

// WithdrawnEntry returns the entry of an address that was free and is about to leave the pool (see nodepool.Surplus). The
// entry is a Cooldown entry whose cooldown has no duration: the controller removes the entry as soon as the agent has
// acknowledged it. The entry becomes dynamic again if a pod has the address after all, or if the pool needs more free entries
// before that acknowledgement.
func WithdrawnEntry(at time.Time) Entry {
	return Entry{Kind: Cooldown, Leaving: true}.with(details{since: at.Unix()})
}

// MovedEntry returns the entry that the pool of the home node has for an address of owner while the pool of node carries the
// address, or is about to.
func MovedEntry(node, owner string) Entry {
	return Entry{Kind: Moved}.with(details{node: node, pod: owner})
}

// LeavingEntry returns the MovedEntry of an address that is about to leave node.
func LeavingEntry(node, owner string) Entry {
	return Entry{Kind: Moved, Leaving: true}.with(details{node: node, pod: owner})
}

// MoveTargetEntry returns the entry for an address of owner in the pool that the address is about to move to.
func MoveTargetEntry(owner string) Entry {
	return Entry{Kind: MoveTarget}.with(details{pod: owner})
}

// OwnerKey returns the owner text of a pod, "namespace/name": the CNI plugin sends it to the agent (Cilium fact 1).
func OwnerKey(namespace, podName string) string { return namespace + "/" + podName }

// SplitOwnerKey is the inverse of OwnerKey. ok is false for owners that are not pods. A dot before the slash is refused,
// because owners such as fixedip.io/cooldown have one; a semicolon is refused, because it separates the fields of a
// resource.
func SplitOwnerKey(owner string) (namespace, podName string, ok bool) {
	namespace, podName, ok = strings.Cut(owner, "/")
	if !ok || namespace == "" || podName == "" || strings.ContainsAny(namespace, ".;") || strings.ContainsAny(podName, "/;") {
		return "", "", false
	}
	return namespace, podName, true
}

// IsPodKey reports whether an owner is the OwnerKey of a pod.
func IsPodKey(owner string) bool {
	_, _, ok := SplitOwnerKey(owner)
	return ok
}

// RedactOwner returns owner, or a neutral phrase if owner and requester are pods of different namespaces. The users of
// requester's namespace see the text. They must not find out which pod of another namespace has an address by requesting that
// address.
func RedactOwner(owner, requester string) string {
	namespace, _, pod := SplitOwnerKey(owner)
	own, _, isPod := SplitOwnerKey(requester)
	if pod && isPod && namespace != own {
		return "a pod of another namespace"
	}
	return owner
}

// OwnedBy reports whether owner, a pod or one of NodeOwners, is the owner of the entry. It is false for an empty owner.
func (e Entry) OwnedBy(owner string) bool { return owner != "" && e.Owner() == owner }

// NamesPod returns the pod of an Owned, Moved or MoveTarget entry. It is empty for all other kinds: the previous owner of a
// Cooldown entry does not count.
func (e Entry) NamesPod() string {
	switch e.Kind {
	case Owned:
		return e.Owner()
	case Moved, MoveTarget:
		return e.Pod()
	}
	return ""
}

// CoolsDownFrom reports whether this is a Cooldown entry whose previous owner is owner.
func (e Entry) CoolsDownFrom(owner string) bool { return e.Kind == Cooldown && e.Pod() == owner }

// IsWithdrawn reports whether the entry is a result of WithdrawnEntry.
func (e Entry) IsWithdrawn() bool { return e.Kind == Cooldown && e.Leaving }

// IsUnreserved reports whether the entry is for a pod without a fixed address on a strict node.
func (e Entry) IsUnreserved() bool { return e.Kind == Owned && e.Purpose == Unreserved }

// IsBarePod reports whether the entry is for a pod without a controller.
func (e Entry) IsBarePod() bool { return e.Kind == Owned && e.Purpose == ForBarePod }

// UnreservedKind is the kind that WorkloadRef returns for an Unreserved entry.
const UnreservedKind = "Pod"

// WorkloadRef returns the kind and name of the workload that the entry is for; for an Unreserved entry, UnreservedKind and
// the name of the pod. ok is false if the entry names no workload.
func (e Entry) WorkloadRef() (kind, name string, ok bool) {
	switch e.Purpose {
	case ForWorkload:
		return SplitWorkloadKey(e.Workload())
	case Unreserved:
		_, podName, _ := SplitOwnerKey(e.Owner())
		return UnreservedKind, podName, true
	}
	return "", "", false
}

// SplitWorkloadKey returns the kind and name of a WorkloadKey. ok is false if the text does not have exactly three
// parts, or if the kind or the name is empty.
func SplitWorkloadKey(key string) (kind, name string, ok bool) {
	_, rest, _ := strings.Cut(key, "/")
	kind, name, ok = strings.Cut(rest, "/")
	if !ok || kind == "" || name == "" || strings.Contains(name, "/") {
		return "", "", false
	}
	return kind, name, true
}

// SinceTime returns Since as a time, and the zero time if Since is 0.
func (e Entry) SinceTime() time.Time {
	if since := e.Since(); since != 0 {
		return time.Unix(since, 0)
	}
	return time.Time{}
}

// Allocatable reports whether an agent may allocate the address, to a pod or to its node, because of this entry. A
// Foreign entry counts, because fixedip does not know whether the agent allocates addresses for its owner. The restore
// of an endpoint after a restart of the agent does not count: every entry allows that (Cilium fact 27).
func (e Entry) Allocatable() bool {
	return e.Kind != Cooldown && e.Kind != Moved && e.Kind != MoveTarget
}
