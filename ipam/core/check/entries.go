// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/podutil"
	"fixedip.io/fixedip/ipam/core/pool"
)

// markerPrefix is the beginning of the owner texts that name no pod and have a meaning for fixedip, such as
// fixedip.io/cooldown.
const markerPrefix = "fixedip.io/"

// malformedText returns the reason why the owner or the resource of an entry cannot be read; empty if both can. resource is
// the resource text if it differs from the one that fixedip would write, and empty otherwise. An owner or a resource without
// a slash is a text that a user may write.
func malformedText(e pool.Entry, resource string) string {
	switch {
	case e.Kind == pool.Foreign && strings.HasPrefix(e.Owner(), markerPrefix):
		return fmt.Sprintf("this version knows no owner %q", e.Owner())
	case e.Kind == pool.Foreign && strings.Contains(e.Owner(), "/"):
		return fmt.Sprintf("the owner %q is not namespace/pod", e.Owner())
	case e.Kind == pool.Moved && (e.Node() == "" || e.Pod() == ""):
		return fmt.Sprintf("the resource %q does not name the node that carries the address and its pod", resource)
	case e.Kind == pool.MoveTarget && e.Pod() == "":
		return fmt.Sprintf("the resource %q does not name the pod whose address is about to arrive", resource)
	case e.Kind == pool.Cooldown && e.Since() == 0 && resource != "":
		return fmt.Sprintf("the resource %q does not say since when the address cools down", resource)
	case e.Kind != pool.Owned:
		return ""
	case e.Purpose == pool.UnknownPurpose && strings.Contains(resource, "/"):
		return fmt.Sprintf("the resource %q is not namespace/Kind/name", resource)
	}
	namespace, _, _ := pool.SplitOwnerKey(e.Owner())
	if e.Purpose == pool.ForWorkload && resource != "" && !strings.HasPrefix(resource, namespace+"/") {
		return fmt.Sprintf("the resource %q names another namespace than the owner %s", resource, e.Owner())
	}
	return ""
}

// rewrite returns the repair of a malformed owned entry whose address a FixedIP reserves for the same pod. It returns nil for
// any other entry.
func (s *scan) rewrite(n pool.NodePool, a netip.Addr) *Repair {
	e := n.Entries[a]
	if e.Kind != pool.Owned || s.reservedFor(e.Owner(), a) == nil {
		return nil
	}
	return &Repair{Pod: e.Owner(), RewriteOn: n.Name, Address: a}
}

func (s *scan) malformedHelp(n pool.NodePool, a netip.Addr) string {
	help := "correct the entry with kubectl edit ciliumnode " + n.Name
	if s.rewrite(n, a) != nil {
		help = "check --fix writes the resource that belongs to the FixedIP; or " + help
	}
	return help
}

// reservedFor returns the FixedIP that reserves the address for a pod, "namespace/name"; nil if there is none. A FixedIP that
// is being deleted does not count.
func (s *scan) reservedFor(pod string, a netip.Addr) *v1alpha1.FixedIP {
	for _, f := range s.fixedIPs[pod] {
		if f.DeletionTimestamp == nil && slices.Contains(address.ParseAll(f.Spec.IPs), a) {
			return f
		}
	}
	return nil
}

// RecordedEntry returns the pool entry that gives the addresses of a FixedIP to its pod.
func RecordedEntry(f *v1alpha1.FixedIP) pool.Entry {
	return identity.Identity{Namespace: f.Namespace, PodName: f.Spec.PodName, Owner: identity.OwnerOf(f), Slot: f.Spec.AssignedTo == v1alpha1.Slot}.Entry()
}

// checkHandshakes reports the release handshakes of a node. fixedip starts none, and the controller withdraws those of other
// programs at once, so a handshake that two readings show is stuck.
func (s *scan) checkHandshakes(n pool.NodePool, object string) {
	for _, a := range slices.SortedFunc(maps.Keys(n.Handshakes), netip.Addr.Compare) {
		state := n.Handshakes[a]
		if state == pool.OtherState {
			s.add(StuckHandshake, object, "remove the key from status.ipam.release-ips of the CiliumNode if no other program writes it", nil, "The release handshake of %s has a state that fixedip does not know", a)
			continue
		}
		repair := &Repair{Handshake: &HandshakeRepair{Node: n.Name, Address: a, State: state}}
		s.add(StuckHandshake, object, "check that a fixedip-controller is the leader, and that no other program writes status.ipam.release-ips; check --fix withdraws the handshake", repair, "The release handshake of %s stays in the state %s, although the controller has to withdraw it", a, state)
	}
}

// isHeld reports whether a pod has the address.
func (s *scan) isHeld(a netip.Addr) bool {
	if s.held == nil {
		s.held = map[netip.Addr]bool{}
		for i := range s.Pods {
			if podutil.HoldsIPs(&s.Pods[i]) {
				for _, a := range podutil.IPs(&s.Pods[i]) {
					s.held[a] = true
				}
			}
		}
	}
	return s.held[a]
}

// checkSubnets reports NodeSubnets that do not agree with the nodes.
func (s *scan) checkSubnets() {
	if s.Nodes == nil {
		return
	}
	for i := range s.NodeSubnets {
		ns := &s.NodeSubnets[i]
		cidr, err := address.ParseSubnet(ns.Spec.CIDR)
		// The controller removes a NodeSubnet that is being deleted. A NodeSubnet without a node waits for one.
		if err != nil || ns.DeletionTimestamp != nil || ns.Spec.NodeName == "" || len(s.Pools.HomesOf(cidr.Addr())) > 0 {
			continue
		}
		object := "NodeSubnet " + ns.Name
		_, pooled := s.Pools.Node(ns.Spec.NodeName)
		switch {
		case s.Nodes[ns.Spec.NodeName] != nil && pooled:
			s.add(StaleSubnet, object, "look at the events of the Node and at the log of fixedip-controller, which writes the subnet into the CiliumNode", nil, "The NodeSubnet gives %s to node %s, but no CiliumNode has it", cidr, ns.Spec.NodeName)
		case s.Nodes[ns.Spec.NodeName] != nil, s.needs(cidr):
			// The node joins, or a FixedIP or a pod needs the subnet until another node inherits it.
		case ns.Status.OrphanedSince == nil, s.Now.Sub(ns.Status.OrphanedSince.Time) > s.stuckAfter():
			s.add(StaleSubnet, object, "check that a fixedip-controller is the leader: the leader deletes a NodeSubnet that no node and no FixedIP needs; check --fix deletes the NodeSubnet too", &Repair{DeleteSubnet: ns.Name, UID: ns.UID, ResourceVersion: ns.ResourceVersion}, "Node %s does not exist, and no FixedIP and no pod has an address of %s", ns.Spec.NodeName, cidr)
		}
	}
}

// needs reports whether a FixedIP or a pod has an address of a subnet.
func (s *scan) needs(subnet netip.Prefix) bool {
	for i := range s.FixedIPs {
		if slices.ContainsFunc(address.ParseAll(s.FixedIPs[i].Spec.IPs), subnet.Contains) {
			return true
		}
	}
	s.isHeld(subnet.Addr()) // computes s.held
	for a := range s.held {
		if subnet.Contains(a) {
			return true
		}
	}
	return false
}
