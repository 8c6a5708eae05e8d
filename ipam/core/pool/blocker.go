// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"fixedip.io/fixedip/ipam/core/address"
)

// ErrTaken means that an address is not available. errors.Is matches it for every Blocker.
var ErrTaken = errors.New("the address is not available")

// Reason is a reason why an address is not available. It becomes the reason of the FixedIP's condition Allocated.
type Reason string

// The reasons why an address is not available.
const (
	// SubnetNotFound means that the address is in no subnet of the node, or of any node.
	SubnetNotFound Reason = "SubnetNotFound"
	// SubnetOverlap means that the subnets of the nodes Node and Who overlap, so that no address in them is claimed.
	SubnetOverlap Reason = "SubnetOverlap"
	// SubnetEdge means that pods can't have the address because of its place in the subnet: see address.Ends.
	SubnetEdge Reason = "SubnetEdge"
	// DynamicEntry means that the entry is dynamic: any pod may be using the address.
	DynamicEntry Reason = "DynamicEntry"
	// OwnedByPod means that the entry belongs to the pod Who.
	OwnedByPod Reason = "OwnedByPod"
	// OnOtherNode means that the address belongs to the pod Who and is in the pool of another node.
	OnOtherNode Reason = "OnOtherNode"
	// Moving means that the address of the pod Requester has left its home for the node Who.
	Moving Reason = "Moving"
	// ReservedByNode means that the node uses the address itself, or the entry has an owner that fixedip does not know.
	ReservedByNode Reason = "ReservedByNode"
	// CoolingDown means that the address was released and its cooldown has not ended.
	CoolingDown Reason = "CoolingDown"
	// InUseByPod means that the pod Who uses the address, by the report of the agent or by the status of the pod.
	InUseByPod Reason = "InUseByPod"
	// NotReported means that the agent has not reported since its start which addresses its pods use
	// (NodePool.Unreported).
	NotReported Reason = "NotReported"
	// Releasing means that the agent withholds the address because of a release handshake (NodePool.IsReleasing).
	Releasing Reason = "Releasing"
	// ClaimInFlight means that the scheduler has assumed the address for the pod Who.
	ClaimInFlight Reason = "ClaimInFlight"
	// ReservedByOtherFixedIP means that the FixedIP Who reserves the address and takes precedence.
	ReservedByOtherFixedIP Reason = "ReservedByOtherFixedIP"
	// AddressesOnDifferentNodes means that another address of the same FixedIP has its home on the node Who.
	AddressesOnDifferentNodes Reason = "AddressesOnDifferentNodes"
	// OtherAddressAllocated means that the pod Requester already has the address Who of the same family on the node.
	OtherAddressAllocated Reason = "OtherAddressAllocated"
)

// Blocker is the reason why an address is not available to a pod. It is an error that matches ErrTaken.
type Blocker struct {
	Addr netip.Addr
	// Node is the node on which the address is not available; empty: no node has its subnet.
	Node   string
	Reason Reason
	// Who is the pod or FixedIP ("namespace/name"), the owner text, the node or the address that Reason refers to. Users
	// of other namespaces must not see the names in Who: show them Error, which redacts these.
	Who string
	// Requester is the pod that requests the address, "namespace/name": the address is not available to it.
	Requester string
	// Since is the time at which the address was released, in Unix seconds, for CoolingDown; 0: unknown.
	Since int64
	// Subnets are the subnets of Node, for SubnetNotFound.
	Subnets []netip.Prefix
}

// Is reports whether target is ErrTaken.
func (b *Blocker) Is(target error) bool { return target == ErrTaken }

// Error returns a description of the problem that names the object. Owners of other namespaces than that of
// Requester are redacted.
func (b *Blocker) Error() string {
	text := problems[b.Reason]
	switch {
	case b.Reason == SubnetNotFound && b.Node == "":
		text = "{ip} is in no node's subnet"
	case b.Reason == CoolingDown && b.Since != 0:
		text += " at " + time.Unix(b.Since, 0).UTC().Format(time.RFC3339)
	case b.Reason == ReservedByOtherFixedIP && RedactOwner(b.Who, b.Requester) != b.Who:
		text = "{ip} is reserved by a FixedIP of another namespace"
	}
	return strings.NewReplacer("{ip}", "IP "+b.Addr.String(), "{node}", b.Node, "{subnets}", JoinSubnets(b.Subnets),
		"{who}", b.Who, "{quoted}", strconv.Quote(b.Who), "{pod}", b.pod(), "{requester}", b.Requester).Replace(text)
}

// problems contains the templates of Error. Key: the Reason. Value: the problem and the object.
var problems = map[Reason]string{
	SubnetNotFound:            "{ip} is not in the subnets of node {node} ({subnets})",
	SubnetOverlap:             "{ip} is in the subnets of two nodes, {node} and {who}",
	SubnetEdge:                "{ip} is the first or last address of a subnet of node {node}, which no pod can have",
	DynamicEntry:              "{ip} on node {node} is a dynamic entry, which any pod may be using",
	OwnedByPod:                "{ip} on node {node} belongs to {pod}",
	OnOtherNode:               "{ip} on node {node} belongs to {pod} and has moved to another node",
	Moving:                    "{ip} on node {node} is moving to node {who}, whose pool does not have the entry yet",
	ReservedByNode:            "{ip} on node {node} is reserved for {quoted}",
	CoolingDown:               "{ip} on node {node} is cooling down after its release",
	InUseByPod:                "{ip} on node {node} is still in use by {pod}",
	NotReported:               "{ip} on node {node} may be in use: the Cilium agent has not reported yet which addresses its pods use",
	Releasing:                 "{ip} on node {node} is being taken out of the pool",
	ClaimInFlight:             "{ip} on node {node} is being claimed for {pod}",
	ReservedByOtherFixedIP:    "{ip} is reserved by FixedIP {who}",
	AddressesOnDifferentNodes: "{ip} is in a subnet of node {node}, and another address of the same FixedIP in one of node {who}: no pod can have both",
	OtherAddressAllocated:     "pod {requester} already has IP {who} on node {node}, and can't have {ip} there as well",
}

// help contains the second half of Message. Key: the Reason. Value: the next event, or what the user can do.
var help = map[Reason]string{
	SubnetNotFound:            "it becomes available when a node gets a subnet that contains it",
	SubnetOverlap:             "it becomes available when one of the subnets is changed",
	SubnetEdge:                "request another address",
	DynamicEntry:              "request an address nearer to the top of the node's subnet, or wait until the pool no longer has this one",
	OwnedByPod:                "request another address, or release this one",
	OnOtherNode:               "request another address, or release this one",
	ReservedByNode:            "request another address",
	CoolingDown:               "it becomes available after the cooldown",
	InUseByPod:                "it becomes available when that pod is gone and the agent no longer reports it",
	NotReported:               "it becomes available when the agent has reported; check the cilium pod of the node",
	Releasing:                 "it becomes available when the agent has confirmed the removal",
	ClaimInFlight:             "request another address, or release this one",
	ReservedByOtherFixedIP:    "request another address, or have that FixedIP deleted",
	AddressesOnDifferentNodes: "delete the FixedIP and request addresses of one node",
	OtherAddressAllocated:     "delete the pod to release its other address",
}

// Message returns the text of Error, followed by the next event or what the user can do. It is for conditions and events.
func (b *Blocker) Message() string {
	if next := help[b.Reason]; next != "" {
		return b.Error() + "; " + next
	}
	return b.Error()
}

// pod returns the text for Who in messages about pods, redacted if Who is in another namespace than Requester.
func (b *Blocker) pod() string {
	switch who := RedactOwner(b.Who, b.Requester); {
	case who == "":
		return "an unknown pod"
	case who != b.Who || !IsPodKey(who):
		return who
	default:
		return "pod " + who
	}
}

// JoinSubnets returns the text for a list of subnets in messages; "none" if it is empty.
func JoinSubnets[T any](subnets []T) string {
	if len(subnets) == 0 {
		return "none"
	}
	var out []string
	for _, s := range subnets {
		out = append(out, fmt.Sprint(s))
	}
	return strings.Join(out, ", ")
}

// Blocker returns the reason why the entry e of address a in the pool of node n prevents owner from having the address there;
// nil if owner owns the entry.
func (e Entry) Blocker(n string, a netip.Addr, owner string) *Blocker {
	b := &Blocker{Addr: a, Node: n, Requester: owner, Who: e.Owner}
	switch e.Kind {
	case Dynamic:
		b.Reason = DynamicEntry
	case Owned:
		if e.Owner == owner {
			return nil
		}
		b.Reason = OwnedByPod
	case NodeOwned, Foreign:
		b.Reason = ReservedByNode
	case Cooldown:
		b.Reason, b.Since = CoolingDown, e.Since
	case Moved:
		b.Reason, b.Who = OnOtherNode, e.Pod
		if e.Pod == owner {
			b.Reason, b.Who = Moving, e.Node
		}
	case MoveTarget:
		b.Reason, b.Who = OwnedByPod, e.Pod
	}
	return b
}

// Blocker returns the reason why the pod owner can't have an address in this pool; nil if the pod can, or has the address
// already. replaces reports whether the caller may replace an entry; nil: the caller may replace no entry.
func (n NodePool) Blocker(a netip.Addr, owner string, replaces func(Entry) bool) *Blocker {
	if !n.Home(a) && !n.Entries[a].OwnedBy(owner) {
		return &Blocker{Addr: a, Node: n.Name, Reason: SubnetNotFound, Requester: owner, Subnets: n.Subnets}
	}
	return n.entryBlocker(a, owner, replaces)
}

// entryBlocker is Blocker without the check that the address is in a subnet of the node.
func (n NodePool) entryBlocker(a netip.Addr, owner string, replaces func(Entry) bool) *Blocker {
	e, exists := n.Entries[a]
	if e.OwnedBy(owner) {
		return nil
	}
	if exists && (replaces == nil || !replaces(e)) {
		return e.Blocker(n.Name, a, owner)
	}
	if user, used := n.Used[a]; used && user != owner {
		return &Blocker{Addr: a, Node: n.Name, Reason: InUseByPod, Who: user, Requester: owner}
	}
	if n.Unreported {
		return &Blocker{Addr: a, Node: n.Name, Reason: NotReported, Requester: owner}
	}
	return nil
}

// OtherAddressOf returns a Blocker if owner has an address in this pool that is not in addrs but in the family of one of
// addrs: the agent would choose between the two at random. It returns nil if there is no such address.
func (n NodePool) OtherAddressOf(owner string, addrs []netip.Addr) *Blocker {
	for a, e := range n.Entries {
		if !e.OwnedBy(owner) || slices.Contains(addrs, a) {
			continue
		}
		if i := slices.IndexFunc(addrs, func(want netip.Addr) bool { return want.BitLen() == a.BitLen() }); i >= 0 {
			return &Blocker{Addr: addrs[i], Node: n.Name, Reason: OtherAddressAllocated, Who: a.String(), Requester: owner}
		}
	}
	return nil
}

// bindingError is the reason why a pod must not be bound to a node. It matches ErrTaken.
type bindingError string

func (e bindingError) Error() string { return string(e) }

// Is reports whether target is ErrTaken.
func (bindingError) Is(target error) bool { return target == ErrTaken }

// CheckBinding returns an error if binding the pod owner to the node would violate the binding invariant: the entries there
// that name the pod must be exactly those planned for it. For a pod without a fixed address an entry is planned only on a
// strict node. The agent matches entries by the name of the pod alone (Cilium fact 1): if a planned entry is missing, it
// assigns any free address, and it may assign the address of an entry that is not planned.
//
// entries are the addresses of the entries on the node that name the pod, planned the addresses that the pod should have. The
// error matches ErrTaken.
func CheckBinding(owner, node string, entries, planned []netip.Addr) error {
	if unexpected := without(entries, planned); len(unexpected) > 0 {
		return bindingError(fmt.Sprintf("node %s has an entry for %s at %s, which is not planned for that pod", node, owner, address.Join(unexpected)))
	}
	if missing := without(planned, entries); len(missing) > 0 {
		return bindingError(fmt.Sprintf("node %s has no entry for %s at %s", node, owner, address.Join(missing)))
	}
	return nil
}

// CheckBinding returns an error if binding the pod owner to the node would violate the binding invariant, or if the agent
// reports a planned address as used by another owner: the agent matches by name without a check whether the address is in
// use, and would assign it twice (Cilium fact 2). The error matches ErrTaken.
func (n NodePool) CheckBinding(owner string, planned []netip.Addr) error {
	if err := CheckBinding(owner, n.Name, n.Owns(owner), planned); err != nil {
		return err
	}
	for _, a := range planned {
		if user := n.Used[a]; user != "" && user != owner {
			return bindingError(fmt.Sprintf("IP %s on node %s is in use by %s, as the Cilium agent of the node reports", a, n.Name, RedactOwner(user, owner)))
		}
	}
	return nil
}

// without returns the addresses of a that are not in b, sorted.
func without(a, b []netip.Addr) []netip.Addr {
	left := slices.DeleteFunc(slices.Clone(a), func(x netip.Addr) bool { return slices.Contains(b, x) })
	slices.SortFunc(left, netip.Addr.Compare)
	return slices.Compact(left)
}
