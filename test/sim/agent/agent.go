// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package agent is what a Cilium agent does with addresses in CRD mode, without its goroutines, its clock and
// its watch: a model for the simulation. Its test holds it against Cilium's own allocator.
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

// Allocator is what Cilium's allocator of the CRD mode does with addresses (pkg/ipam/crd.go), without its
// goroutines. Where that one goes by the order of a map, this one asks choose.
type Allocator struct {
	// Node is the CiliumNode as the agent last saw it, with the agent's own answers in the release
	// handshakes; nil: it has none.
	Node *ciliumv2.CiliumNode
	// seen is the CiliumNode as the watch last told of it, without the agent's answers; nil: there is none.
	seen *ciliumv2.CiliumNode
	// Allocated are the addresses in use. Value: by whom.
	Allocated map[string]string
	choose    func(n int) int
}

// New is the allocator of an agent that has just started. choose is asked for a number below n.
func New(choose func(n int) int) *Allocator {
	return &Allocator{Allocated: map[string]string{}, choose: choose}
}

// See takes in a version of the CiliumNode; nil: it is gone. It tells whether the status is to be written
// for the sake of a handshake (updateLocalNodeResource).
//
// The answers stand nowhere but in the agent's copy until they are written. A version with the spec and the
// status of the one before takes the place of that copy, and the handshakes in it are not looked at
// (setOwnNodeWithoutPoolUpdate): what was not written by then is forgotten.
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

// withheld tells whether an address is kept back because of a handshake (isIPInReleaseHandshake).
func (a *Allocator) withheld(ip string) bool {
	switch a.Node.Status.IPAM.ReleaseIPs[ip] {
	case ipamoption.IPAMMarkForRelease, ipamoption.IPAMReadyForRelease, ipamoption.IPAMReleased:
		return true
	}
	return false
}

// Take allocates one certain address (Allocate).
func (a *Allocator) Take(ip, owner string) error {
	_, used := a.Allocated[ip]
	switch {
	case used:
		return fmt.Errorf("IP already in use")
	case a.Node == nil:
		return fmt.Errorf("CiliumNode for own node is not available")
	case a.Node.Spec.IPAM.Pool == nil:
		return fmt.Errorf("the pool is not there yet")
	case a.withheld(ip):
		return fmt.Errorf("IP not available, marked or ready for release")
	}
	if _, pooled := a.Node.Spec.IPAM.Pool[ip]; !pooled {
		return fmt.Errorf("IP %s is not available", ip)
	}
	a.Allocated[ip] = owner
	return nil
}

// Next allocates an address of one family for an owner (AllocateNext): the one whose entry names it, in use or not, and
// otherwise any that is free.
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

// Owned are the addresses of one family whose entries name an owner.
func (a *Allocator) Owned(owner string, v6 bool) []string {
	return a.entries(v6, func(_ string, e ipamtypes.AllocationIP) bool { return owner != "" && e.Owner == owner })
}

// Offered are the addresses of one family that any pod may get.
func (a *Allocator) Offered(v6 bool) []string {
	return a.entries(v6, func(ip string, e ipamtypes.AllocationIP) bool {
		_, used := a.Allocated[ip]
		return !used && e.Owner == "" && !a.withheld(ip)
	})
}

// IsIPv6 reports whether an address is one of IPv6.
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

// Release gives an address back, whoever has it by now (Release).
func (a *Allocator) Release(ip string) error {
	if _, used := a.Allocated[ip]; !used {
		return fmt.Errorf("IP %s is not allocated", ip)
	}
	delete(a.Allocated, ip)
	return nil
}

// Used is what the agent reports as status.ipam.used. The resource is that of the entry at the time of the
// allocation, which nobody reads.
func (a *Allocator) Used() ipamtypes.AllocationMap {
	used := ipamtypes.AllocationMap{}
	for ip, owner := range maps.All(a.Allocated) {
		used[ip] = ipamtypes.AllocationIP{Owner: owner}
	}
	return used
}
