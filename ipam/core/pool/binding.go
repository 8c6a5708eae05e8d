// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"fmt"
	"net/netip"
	"slices"

	"fixedip.io/fixedip/ipam/core/address"
)

// BindingError says why a pod must not be bound to a node. It matches ErrTaken.
type BindingError struct {
	Owner, Node string
	// Missing are planned addresses without an entry for the pod, and Unexpected are addresses with an entry for
	// the pod that are not planned. The agent matches entries by the pod's name alone (Cilium fact 1): without a
	// missing entry it assigns any free address, and it assigns an unexpected one as readily as a planned one.
	Missing, Unexpected []netip.Addr
	// InUse is a planned address that the agent reports as used by User, another pod. The agent does not look at
	// that when it matches by name, and would assign the address twice (Cilium fact 2).
	InUse netip.Addr
	User  string
}

func (e *BindingError) Error() string {
	switch {
	case len(e.Unexpected) > 0:
		return fmt.Sprintf("node %s has an entry for %s at %s, which is not planned for it", e.Node, e.Owner, address.Join(e.Unexpected))
	case len(e.Missing) > 0:
		return fmt.Sprintf("node %s has no entry for %s at %s", e.Node, e.Owner, address.Join(e.Missing))
	}
	return fmt.Sprintf("%s on node %s is used by %s", e.InUse, e.Node, RedactOwner(e.User, e.Owner))
}

// Is reports whether target is ErrTaken.
func (e *BindingError) Is(target error) bool { return target == ErrTaken }

// CheckBinding is the binding invariant: a pod is bound to a node only if the entries of the node for its name are
// exactly those that are planned for it. Nothing is planned for a pod without a fixed address, except its own entry
// on a strict node. CheckBinding returns nil, or a *BindingError.
//
// entries are the addresses of the entries on the node that name the pod.
func CheckBinding(owner, node string, entries, planned []netip.Addr) error {
	e := &BindingError{Owner: owner, Node: node, Missing: without(planned, entries), Unexpected: without(entries, planned)}
	if len(e.Missing)+len(e.Unexpected) > 0 {
		return e
	}
	return nil
}

// CheckBinding checks the binding invariant in the pool of the node, and that the agent reports none of the planned
// addresses as used by another pod.
func (n NodePool) CheckBinding(owner string, planned []netip.Addr) error {
	if err := CheckBinding(owner, n.Name, n.Owns(owner), planned); err != nil {
		return err
	}
	for _, a := range planned {
		if user := n.Used[a]; user != "" && user != owner {
			return &BindingError{Owner: owner, Node: n.Name, InUse: a, User: user}
		}
	}
	return nil
}

// without returns the addresses of a that are not in b, sorted.
func without(a, b []netip.Addr) []netip.Addr {
	rest := slices.DeleteFunc(slices.Clone(a), func(x netip.Addr) bool { return slices.Contains(b, x) })
	slices.SortFunc(rest, netip.Addr.Compare)
	return slices.Compact(rest)
}
