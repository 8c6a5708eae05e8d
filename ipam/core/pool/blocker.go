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

// ErrTaken means that an address is not available. errors.Is matches it for every Blocker and for the errors of Taken.
var ErrTaken = errors.New("the address is not available")

// Taken returns an error with the given text that matches ErrTaken.
func Taken(format string, args ...any) error { return takenError(fmt.Sprintf(format, args...)) }

type takenError string

func (e takenError) Error() string { return string(e) }

// Is reports whether target is ErrTaken.
func (takenError) Is(target error) bool { return target == ErrTaken }

// Reason is a reason why an address is not available. Some of the reasons are also reasons of the FixedIP's condition
// Allocated.
type Reason string

// The reasons why an address is not available.
const (
	// SubnetNotFound means that the address is in no subnet of Node. If Node is empty, the address has no home
	// (Ledger.Home).
	SubnetNotFound Reason = "SubnetNotFound"
	// SubnetOverlap means that the subnets of the nodes Node and Who overlap, so that no address in them is claimed.
	SubnetOverlap Reason = "SubnetOverlap"
	// SubnetEdge means that pods can't have the address because of its place in the subnet: see address.Ends.
	SubnetEdge Reason = "SubnetEdge"
	// DynamicEntry means that the entry is dynamic: any pod may be using the address.
	DynamicEntry Reason = "DynamicEntry"
	// OwnedByPod means that the entry belongs to the pod Who.
	OwnedByPod Reason = "OwnedByPod"
	// OnOtherNode means that the home has a Moved entry of the pod Who, which is not Requester: the address has moved to
	// another node, or is about to.
	OnOtherNode Reason = "OnOtherNode"
	// Moving means that the home has a Moved entry of the pod Requester: the address has moved to the node Who, or is
	// about to.
	Moving Reason = "Moving"
	// ReservedByNode means that the node uses the address itself, or the entry has an owner that fixedip does not know.
	ReservedByNode Reason = "ReservedByNode"
	// CoolingDown means that the address was released or withdrawn and its cooldown has not ended.
	CoolingDown Reason = "CoolingDown"
	// InUseByPod means that Who uses the address, by the report of the agent or by the status of a pod. Who is usually a pod,
	// but may be any owner text in the report; it is empty or UnknownUser if the report has none.
	InUseByPod Reason = "InUseByPod"
	// NotReported means that the agent has not reported yet which addresses its pods use (NodePool.Unreported).
	NotReported Reason = "NotReported"
	// Releasing means that the agent withholds the address because of a release handshake (NodePool.IsReleasing).
	Releasing Reason = "Releasing"
	// ClaimInFlight means that the scheduler has assumed the address for the pod Who.
	ClaimInFlight Reason = "ClaimInFlight"
	// ReservedByOtherFixedIP means that the FixedIP Who reserves the address and takes precedence.
	ReservedByOtherFixedIP Reason = "ReservedByOtherFixedIP"
	// AddressesOnDifferentNodes means that another address of the same FixedIP has its home on the node Who.
	AddressesOnDifferentNodes Reason = "AddressesOnDifferentNodes"
	// OtherAddressAllocated means that the pool already has an entry for the address Who, of the same family, for the pod
	// Requester.
	OtherAddressAllocated Reason = "OtherAddressAllocated"
)

// Blocker is the reason why an address is not available to a pod. It is an error that matches ErrTaken.
type Blocker struct {
	Addr netip.Addr
	// Node is the node on which the address is not available; empty: the address has no home (Ledger.Home).
	Node   string
	Reason Reason
	// Who is the pod or FixedIP ("namespace/name"), the owner text, the node or the address that Reason refers to; empty if
	// that is not known. Users of other namespaces must not see the names in Who: show them Error, which redacts these.
	Who string
	// Requester is the pod that requests the address, "namespace/name": the address is not available to it.
	Requester string
	// Since is the time at which the cooldown began, in Unix seconds, for CoolingDown; 0: unknown.
	Since int64
	// Subnets are the subnets of Node, for SubnetNotFound.
	Subnets []netip.Prefix
	// NoSubnet is true if no node's subnet contains the address, for SubnetNotFound without Node. If NoSubnet is false,
	// the reason may also be that the subnets of the address's node overlap those of another node.
	NoSubnet bool
}

// Is reports whether target is ErrTaken.
func (b *Blocker) Is(target error) bool { return target == ErrTaken }

// Error returns a description of the problem that names the object. It redacts the pods and FixedIPs of namespaces other than
// that of Requester.
func (b *Blocker) Error() string {
	text := problems[b.Reason]
	switch {
	case b.Reason == SubnetNotFound && b.NoSubnet:
		text = "{ip} is in no node's subnet"
	case b.Reason == SubnetNotFound && b.Node == "":
		text = "{ip} is in no node's subnet, or the subnets of its node overlap those of another node"
	case (b.Reason == OnOtherNode || b.Reason == Moving) && b.Who == "":
		text = "{ip} of node {node} has moved to another node, or is about to"
	case b.Reason == ReservedByNode && ForOwner(b.Who).Kind == NodeOwned:
		text = "{ip} on node {node} is reserved for the node itself ({who})"
	case b.Reason == CoolingDown && b.Since != 0:
		text = "{ip} on node {node} has been cooling down since " + time.Unix(b.Since, 0).UTC().Format(time.RFC3339)
	case b.Reason == ReservedByOtherFixedIP && RedactOwner(b.Who, b.Requester) != b.Who:
		text = "{ip} is reserved by a FixedIP of another namespace"
	}
	return b.fill(text)
}

// fill returns the template with its placeholders replaced by values of the Blocker.
func (b *Blocker) fill(template string) string {
	return strings.NewReplacer("{ip}", "IP "+b.Addr.String(), "{node}", b.Node, "{subnets}", JoinSubnets(b.Subnets),
		"{who}", b.Who, "{quoted}", strconv.Quote(b.Who), "{pod}", b.pod(), "{requester}", b.Requester).Replace(template)
}

// OverlapHelp is the advice for overlapping subnets. The NodeSubnet has to be deleted as well: as long as it names the node,
// the controller assigns the subnet to the node again.
const OverlapHelp = "remove the subnet from spec.ipam.podCIDRs of one of the two CiliumNodes and delete its NodeSubnet; if both have the same CIDR, change the CiliumNode that the NodeSubnet does not name, and keep the NodeSubnet"

// problems contains the templates of Error. Key: the Reason. Value: the problem and the object.
var problems = map[Reason]string{
	SubnetNotFound:            "{ip} is not in the subnets of node {node} ({subnets})",
	SubnetOverlap:             "{ip} is neither assigned nor moved while the subnets of nodes {node} and {who} overlap",
	SubnetEdge:                "{ip} is the first or last address of a subnet of node {node}, which no pod can have",
	DynamicEntry:              "{ip} has a dynamic entry in the pool of node {node}, so that any pod may be using it",
	OwnedByPod:                "{ip} on node {node} belongs to {pod}",
	OnOtherNode:               "{ip} of node {node} belongs to {pod} and has moved to another node, or is about to",
	Moving:                    "{ip} of node {node} has moved to node {who}, or is about to",
	ReservedByNode:            "{ip} on node {node} has a pool entry whose owner {quoted} is not a pod",
	CoolingDown:               "{ip} on node {node} is cooling down",
	InUseByPod:                "{ip} on node {node} is still in use by {pod}",
	NotReported:               "{ip} on node {node} may be in use: the Cilium agent has not reported yet which addresses its pods use",
	Releasing:                 "{ip} on node {node} is withheld by the Cilium agent, because a release handshake has not ended",
	ClaimInFlight:             "{ip} on node {node} is being claimed for {pod}",
	ReservedByOtherFixedIP:    "{ip} is reserved by FixedIP {who}",
	AddressesOnDifferentNodes: "{ip} is in a subnet of node {node}, and another address of the same FixedIP is in a subnet of node {who}: no pod can have both",
	OtherAddressAllocated:     "the pool of node {node} already has IP {who} for pod {requester}, which can't have {ip} there as well",
}

// help contains the templates of the second half of Message. Key: the Reason. Value: the next event, or the advice for the
// user. A Reason without a key has no second half.
var help = map[Reason]string{
	SubnetNotFound:            "it becomes available when a node gets a subnet that contains it",
	SubnetOverlap:             "it becomes available when spec.ipam.podCIDRs of the two CiliumNodes no longer overlap",
	SubnetEdge:                "request another address",
	DynamicEntry:              "the controller removes that entry when a FixedIP reserves the IP and no pod uses it; otherwise request an address nearer to the top of the node's subnet",
	OwnedByPod:                "request another address; this one becomes available when it has been released and its cooldown has ended",
	OnOtherNode:               "request another address; this one becomes available when it has been released and its cooldown has ended",
	ReservedByNode:            "request another address",
	CoolingDown:               "it becomes available when the cooldown is over and the Cilium agent has confirmed that no pod uses it",
	InUseByPod:                "it becomes available when no pod has it and the Cilium agent no longer reports it as used",
	NotReported:               "it becomes available when the agent has reported and no pod uses it; check the cilium pod of the node",
	Releasing:                 "it becomes available when the handshake has ended; if that takes minutes, check the cilium pod of the node",
	ClaimInFlight:             "wait until that claim has ended, and request another address if the IP belongs to another pod then",
	ReservedByOtherFixedIP:    "request another address, or have that FixedIP deleted if its addresses are no longer needed",
	AddressesOnDifferentNodes: "delete the FixedIP and request addresses of one node",
	OtherAddressAllocated:     "the controller releases IP {who} when no pod needs it; delete the pod if it runs with IP {who}",
}

// Message returns the text of Error, followed by the text of help if there is one. It is for conditions and events.
func (b *Blocker) Message() string {
	next := help[b.Reason]
	switch {
	case next == "":
		return b.Error()
	case b.Reason == SubnetNotFound && !b.NoSubnet:
		next = "it becomes available when a node has subnets that contain it and do not overlap those of other nodes"
	}
	return b.Error() + "; " + b.fill(next)
}

// pod returns the text for Who in messages about the pod that has an address. If Who equals Requester and the Reason is
// InUseByPod or ClaimInFlight, the text says "the former pod": a former pod of the same name uses or claims the address.
func (b *Blocker) pod() string {
	if b.Who != "" && b.Who == b.Requester && (b.Reason == InUseByPod || b.Reason == ClaimInFlight) {
		return "the former pod " + b.Who
	}
	return userText(b.Who, b.Requester)
}

// UnknownUser stands for the owner of an address that the agent reports as used without an owner.
const UnknownUser = "(unknown)"

// userText returns the text for the owner that has an address. It redacts a pod of a namespace other than that of requester.
func userText(owner, requester string) string {
	switch shown := RedactOwner(owner, requester); {
	case owner == "" || owner == UnknownUser:
		return "an unknown pod"
	case shown != owner:
		return shown
	case IsPodKey(owner):
		return "pod " + owner
	case ForOwner(owner).Kind == NodeOwned:
		return "the node itself (" + owner + ")"
	default:
		return strconv.Quote(owner)
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

// Blocker returns the reason why the entry e of address a in the pool of node n prevents owner from having the address
// there; nil if owner owns the entry.
func (e Entry) Blocker(n string, a netip.Addr, owner string) *Blocker {
	b := &Blocker{Addr: a, Node: n, Requester: owner, Who: e.Owner()}
	switch e.Kind {
	case Dynamic:
		b.Reason = DynamicEntry
	case Owned:
		if e.Owner() == owner {
			return nil
		}
		b.Reason = OwnedByPod
	case NodeOwned, Foreign:
		b.Reason = ReservedByNode
	case Cooldown:
		b.Reason, b.Since = CoolingDown, e.Since()
	case Moved:
		b.Reason, b.Who = OnOtherNode, e.Pod()
		if e.Pod() == owner {
			b.Reason, b.Who = Moving, e.Node()
		}
	case MoveTarget:
		b.Reason, b.Who = OwnedByPod, e.Pod()
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

// CheckBinding returns an error if binding the pod owner to the node would violate the binding invariant: the entries there
// that name the pod must be exactly those planned for it. For a pod without a fixed address an entry is planned only on a
// strict node. The agent matches entries by the name of the pod alone (Cilium fact 1): if a planned entry is missing, it
// assigns any free address, and it may assign the address of an entry that is not planned.
//
// entries are the addresses of the entries on the node that name the pod, planned the addresses that the pod should have.
// The error matches ErrTaken.
func CheckBinding(owner, node string, entries, planned []netip.Addr) error {
	if unexpected := without(entries, planned); len(unexpected) > 0 {
		return Taken("the pool of node %s has %s for pod %s that the pod should not have: IP %s", node, entryOrEntries(unexpected), owner, address.Join(unexpected))
	}
	if missing := without(planned, entries); len(missing) > 0 {
		return Taken("the pool of node %s lacks %s for pod %s: IP %s", node, entryOrEntries(missing), owner, address.Join(missing))
	}
	return nil
}

// CheckBinding returns an error if binding the pod owner to the node would violate the binding invariant, or if the
// agent reports a planned address as used by another owner. The agent matches by name without checking whether the
// address is in use, and would assign the address twice (Cilium fact 2). The error matches ErrTaken.
func (n NodePool) CheckBinding(owner string, planned []netip.Addr) error {
	if err := CheckBinding(owner, n.Name, n.Owns(owner), planned); err != nil {
		return err
	}
	for _, a := range planned {
		if user, used := n.Used[a]; used && user != owner {
			return Taken("the Cilium agent of node %s reports IP %s as used by %s", n.Name, a, userText(user, owner))
		}
	}
	return nil
}

// entryOrEntries returns the noun for the entries of addrs in messages.
func entryOrEntries(addrs []netip.Addr) string {
	if len(addrs) == 1 {
		return "an entry"
	}
	return "entries"
}

// without returns the addresses of a that are not in b, sorted and without duplicates.
func without(a, b []netip.Addr) []netip.Addr {
	left := slices.DeleteFunc(slices.Clone(a), func(x netip.Addr) bool { return slices.Contains(b, x) })
	slices.SortFunc(left, netip.Addr.Compare)
	return slices.Compact(left)
}
