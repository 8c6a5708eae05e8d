// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package agent models how a Cilium agent allocates addresses in CRD mode, without its goroutines, its clock and its watch.
// The simulation uses it, and TestAgainstCilium compares it with Cilium's own allocator.
package agent

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	ipamoption "github.com/cilium/cilium/pkg/ipam/option"
	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
)

// Allocator behaves like Cilium's allocator of the CRD mode (pkg/ipam/crd.go), without its goroutines. If the choice of
// Cilium's allocator depends on the order of a map, Allocator calls choose.
type Allocator struct {
	// Node is the CiliumNode as the agent last saw it, with the agent's own answers in the release handshakes; nil if there is
	// none.
	Node *ciliumv2.CiliumNode
	// seen is the CiliumNode as the watch last delivered it, without the agent's answers; nil if there is none.
	seen *ciliumv2.CiliumNode
	// Allocated contains the addresses in use. Key: the address. Value: the owner for which it was allocated.
	Allocated map[string]string
	choose    func(n int) int
}

// New returns the allocator of an agent that has just started. choose(n) returns a number from 0 to n-1.
func New(choose func(n int) int) *Allocator {
	return &Allocator{Allocated: map[string]string{}, choose: choose}
}

// See processes a version of the CiliumNode, or its deletion if cn is nil. It reports whether the agent has answered a
// handshake, so that the status has to be written (updateLocalNodeResource).
//
// Until the answers are written, only the agent's copy contains them. A version whose spec and status are unchanged replaces
// that copy, and its handshakes are not processed (setOwnNodeWithoutPoolUpdate): unwritten answers are lost. The handshakes
// of a version without a pool are not processed either.
func (a *Allocator) See(cn *ciliumv2.CiliumNode) (answered bool) {
	before := a.seen
	a.seen = cn
	if cn == nil {
		a.Node = nil
		return false
	}
	a.Node = cn.DeepCopy()
	if before != nil && before.DeepEqual(cn) || a.Node.Spec.IPAM.Pool == nil {
		return false
	}
	for ip, status := range a.Node.Status.IPAM.ReleaseIPs {
		_, pooled := a.Node.Spec.IPAM.Pool[ip]
		switch {
		case status == ipamoption.IPAMReadyForRelease || status == ipamoption.IPAMDoNotRelease:
			continue
		case !pooled && status == ipamoption.IPAMReleased:
			delete(a.Node.Status.IPAM.ReleaseIPs, ip)
		case !pooled && status == ipamoption.IPAMMarkForRelease:
			a.Node.Status.IPAM.ReleaseIPs[ip] = ipamoption.IPAMDoNotRelease
		case !pooled || status != ipamoption.IPAMMarkForRelease:
			continue
		case a.Allocated[ip] != "":
			a.Node.Status.IPAM.ReleaseIPs[ip] = ipamoption.IPAMDoNotRelease
		default:
			a.Node.Status.IPAM.ReleaseIPs[ip] = ipamoption.IPAMReadyForRelease
		}
		answered = true
	}
	return answered
}

// isReleasing reports whether a release handshake forbids allocating an address (isIPInReleaseHandshake).
func (a *Allocator) isReleasing(ip string) bool {
	switch a.Node.Status.IPAM.ReleaseIPs[ip] {
	case ipamoption.IPAMMarkForRelease, ipamoption.IPAMReadyForRelease, ipamoption.IPAMReleased:
		return true
	}
	return false
}

// Take allocates the address ip for an owner (Allocate). It returns an error if there is no CiliumNode or no pool, or if the
// address is in use, has no entry in the pool, or must not be allocated because of a release handshake (isReleasing).
func (a *Allocator) Take(ip, owner string) error {
	_, used := a.Allocated[ip]
	switch {
	case used:
		return fmt.Errorf("IP already in use")
	case a.Node == nil:
		return fmt.Errorf("CiliumNode for own node is not available")
	case a.Node.Spec.IPAM.Pool == nil:
		return fmt.Errorf("spec.ipam.pool of the CiliumNode is not set")
	case a.isReleasing(ip):
		return fmt.Errorf("IP not available, marked or ready for release")
	}
	if _, pooled := a.Node.Spec.IPAM.Pool[ip]; !pooled {
		return fmt.Errorf("IP %s is not available", ip)
	}
	a.Allocated[ip] = owner
	return nil
}

// Next allocates an address of one family for an owner (AllocateNext). It takes an address whose entry has that owner,
// even if the address is in use. If there is none, it takes any address that Offered returns. If there is none either,
// or no CiliumNode, it returns an error.
func (a *Allocator) Next(owner string, v6 bool) (string, error) {
	if a.Node == nil {
		return "", fmt.Errorf("CiliumNode for own node is not available")
	}
	choice := a.Owned(owner, v6)
	if len(choice) == 0 {
		choice = a.Offered(v6)
	}
	if len(choice) == 0 {
		return "", fmt.Errorf("no IPs currently available on the node, allocation will be retried once IPs are added to CiliumNode spec.ipam.pool")
	}
	ip := choice[a.choose(len(choice))]
	a.Allocated[ip] = owner
	return ip, nil
}

// Owned returns the addresses of one family whose entries have the owner; none for the empty owner.
func (a *Allocator) Owned(owner string, v6 bool) []string {
	return a.entries(v6, func(_ string, e ipamtypes.AllocationIP) bool { return owner != "" && e.Owner == owner })
}

// Offered returns the addresses of one family that any pod may get: those of unused dynamic entries for which
// isReleasing is false.
func (a *Allocator) Offered(v6 bool) []string {
	return a.entries(v6, func(ip string, e ipamtypes.AllocationIP) bool {
		_, used := a.Allocated[ip]
		return !used && e.Owner == "" && !a.isReleasing(ip)
	})
}

// IsIPv6 reports whether ip is an IPv6 address.
func IsIPv6(ip string) bool { return strings.Contains(ip, ":") }

func (a *Allocator) entries(v6 bool, which func(string, ipamtypes.AllocationIP) bool) []string {
	var found []string
	if a.Node == nil {
		return nil
	}
	for ip, e := range a.Node.Spec.IPAM.Pool {
		if IsIPv6(ip) == v6 && which(ip, e) {
			found = append(found, ip)
		}
	}
	slices.Sort(found)
	return found
}

// Release frees an address, regardless of the owner for which it is allocated (Release). It returns an error if the
// address is not allocated.
func (a *Allocator) Release(ip string) error {
	if _, used := a.Allocated[ip]; !used {
		return fmt.Errorf("IP %s is not allocated", ip)
	}
	delete(a.Allocated, ip)
	return nil
}

// Used returns status.ipam.used as the agent reports it, without the resources. Cilium copies them from the entries
// when it allocates, and the product does not read them.
func (a *Allocator) Used() ipamtypes.AllocationMap {
	used := ipamtypes.AllocationMap{}
	for ip, owner := range maps.All(a.Allocated) {
		used[ip] = ipamtypes.AllocationIP{Owner: owner}
	}
	return used
}
