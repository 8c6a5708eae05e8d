// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package nodepool

import (
	"net/netip"
	"slices"
	"strings"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/pool"
)

// NoDynamic is the watermark of a strict node: it has no dynamic entries.
var NoDynamic = Watermark{}

// PodAddresses is a pod that has addresses of a node's pool, or needs some.
type PodAddresses struct {
	Namespace, Name string
	// Addrs are the IPs in the status of the pod.
	Addrs []netip.Addr
}

func (o PodAddresses) key() string { return pool.OwnerKey(o.Namespace, o.Name) }

// Strict returns the edits that add the entries that the pool of a strict node lacks: for the addresses of the node itself,
// and for pods without a claim. A pod with an IP becomes the owner of the dynamic entry of that IP; pods without IPs get the
// lowest free addresses. short is the number of addresses that the subnets lack. reserved reports whether a FixedIP reserves
// an address.
//
// A pod becomes the owner of a dynamic entry only if both the agent and the status of the pod report that the pod has the
// address: the agent checks only the owner, and would assign the address twice if another pod had it (Cilium fact 2). While
// the agent may still assign a dynamic entry to a pod, or has not reported yet, no pod gets an owned entry for a new address.
func Strict(n pool.NodePool, pods []PodAddresses, reserved func(netip.Addr) bool) (edits []pool.EntryChange, short int) {
	pods = slices.Clone(pods)
	slices.SortFunc(pods, func(a, b PodAddresses) int { return strings.Compare(a.key(), b.key()) })
	for _, f := range address.Families {
		if !n.HasFamily(f) {
			continue
		}
		s := strict{n: n, family: f, hasFreeDynamic: hasFreeDynamic(n, f), reserved: reserved}
		for _, owner := range pool.NodeOwners {
			s.ensureEntry(owner, pool.ForOwner(owner), func(netip.Addr) bool { return true }, !s.hasFreeDynamic || !n.Unreported)
		}
		for _, p := range pods {
			has := func(a netip.Addr) bool { return slices.Contains(p.Addrs, a) }
			// A pod that has IPs gets no new address, even if the pool has no entry for its IPs or the agent has not
			// reported them yet.
			s.ensureEntry(p.key(), pool.UnreservedEntry(p.Namespace, p.Name), has, !s.hasFreeDynamic && len(p.Addrs) == 0 && !n.Unreported)
		}
		n = s.n
		edits, short = append(edits, s.edits...), short+s.short
	}
	return edits, short
}

// hasFreeDynamic reports whether the agent may give a dynamic entry of the family to a pod.
func hasFreeDynamic(n pool.NodePool, f address.Family) bool {
	for a, e := range n.Entries {
		if address.Of(a) == f && e.Kind == pool.Dynamic && !n.InUse(a) && !n.IsReleasing(a) {
			return true
		}
	}
	return false
}

// strict collects the edits of one family. n is the pool after these edits. hasFreeDynamic is the result of the
// function hasFreeDynamic before them.
type strict struct {
	n              pool.NodePool
	family         address.Family
	hasFreeDynamic bool
	reserved       func(netip.Addr) bool
	edits          []pool.EntryChange
	short          int
}

// ensureEntry adds an entry for an owner that has no entry. It replaces a dynamic entry if the agent reports the address as
// used by the owner and has(address) is true. If the agent reports no dynamic entry as used by the owner and fresh is true,
// ensureEntry adds an entry for the lowest free address; if there is no free address, it increments short.
func (s *strict) ensureEntry(owner string, entry pool.Entry, has func(netip.Addr) bool, fresh bool) {
	if _, ok := s.n.HasEntry(owner, s.family); ok {
		return
	}
	used := s.uses(owner)
	if i := slices.IndexFunc(used, has); i >= 0 {
		s.put(used[i], entry)
		return
	}
	if len(used) > 0 || !fresh {
		return
	}
	if a, ok := s.n.Lowest(s.family, s.reserved); ok {
		s.put(a, entry)
	} else {
		s.short++
	}
}

func (s *strict) put(a netip.Addr, entry pool.Entry) {
	edit := s.n.Set(a, entry)
	s.n = s.n.With([]pool.EntryChange{edit})
	s.edits = append(s.edits, edit)
}

// uses returns the addresses of the dynamic entries that the agent reports for an owner, sorted. If the owner is a pod and has
// several, all but at most one of them belong to earlier pods with the name.
func (s *strict) uses(owner string) []netip.Addr {
	var used []netip.Addr
	for a, user := range s.n.Used {
		if e, exists := s.n.Entries[a]; exists && e.Kind == pool.Dynamic && user == owner && address.Of(a) == s.family {
			used = append(used, a)
		}
	}
	slices.SortFunc(used, netip.Addr.Compare)
	return used
}

// StaleUnreserved returns the entries of unreserved pods that no longer need them and whose addresses the agent does not
// report. Key: the address. stays reports whether a pod needs its entry.
func StaleUnreserved(n pool.NodePool, stays func(namespace, name string) bool) map[netip.Addr]pool.Entry {
	stale := map[netip.Addr]pool.Entry{}
	for a, e := range n.Entries {
		if namespace, name, _ := pool.SplitOwnerKey(e.Owner()); e.IsUnreserved() && !n.InUse(a) && !stays(namespace, name) {
			stale[a] = e
		}
	}
	return stale
}
