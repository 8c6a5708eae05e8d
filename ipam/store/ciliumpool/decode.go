// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ciliumpool

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"github.com/cilium/cilium/pkg/node/addressing"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/pool"
)

// restoredSuffix is what an agent appends to the owners in status.ipam.used after a restart.
const restoredSuffix = " [restored]"

// FromCiliumNode reads the pool of a node. What it can't read is in Malformed.
func FromCiliumNode(cn *ciliumv2.CiliumNode) pool.NodePool {
	n := pool.NodePool{
		Name:            cn.Name,
		UID:             string(cn.UID),
		ResourceVersion: cn.ResourceVersion,
		Generation:      cn.Generation,
		PodCIDRs:        cn.Spec.IPAM.PodCIDRs,
		HasPool:         cn.Spec.IPAM.Pool != nil,
		Entries:         make(map[netip.Addr]pool.Entry, len(cn.Spec.IPAM.Pool)),
		Used:            make(map[netip.Addr]string, len(cn.Status.IPAM.Used)),
		HasUsed:         cn.Status.IPAM.Used != nil,
		HasHandshakes:   cn.Status.IPAM.ReleaseIPs != nil,
		Tracked:         len(cn.ManagedFields) > 0,
	}
	n.Subnets, n.Malformed = subnets(cn.Spec.IPAM.PodCIDRs)
	for key, e := range cn.Spec.IPAM.Pool {
		a, err := address.Parse(key)
		if err != nil {
			n.Malformed = append(n.Malformed, fmt.Sprintf("spec.ipam.pool: %q", key))
			continue
		}
		entry, canonical := DecodeEntry(e)
		n.Entries[a] = entry
		if !canonical {
			if n.Resources == nil {
				n.Resources = map[netip.Addr]string{}
			}
			n.Resources[a] = e.Resource
		}
	}
	for key, e := range cn.Status.IPAM.Used {
		switch a, err := address.Parse(key); {
		case err != nil:
		case pool.IsProbe(a):
			n.Probes = append(n.Probes, a)
		default:
			n.Used[a] = strings.TrimSuffix(e.Owner, restoredSuffix)
		}
	}
	slices.SortFunc(n.Probes, netip.Addr.Compare)
	n.Handshakes = handshakes(cn.Status.IPAM.ReleaseIPs, n.Probes)
	return n
}

// subnets reads podCIDRs. Of those that overlap it keeps the largest, which has the addresses of the others:
// they would be counted and handed out twice.
func subnets(podCIDRs []string) (subnets []netip.Prefix, malformed []string) {
	for _, s := range podCIDRs {
		subnet, err := netip.ParsePrefix(s)
		if err != nil || subnet.Addr().Is4In6() {
			malformed = append(malformed, fmt.Sprintf("spec.ipam.podCIDRs: %q", s))
			continue
		}
		subnet = subnet.Masked()
		if i := slices.IndexFunc(subnets, subnet.Overlaps); i >= 0 && subnets[i].Bits() <= subnet.Bits() {
			malformed = append(malformed, fmt.Sprintf("spec.ipam.podCIDRs: %q, which is in %s", s, subnets[i]))
			continue
		}
		subnets = slices.DeleteFunc(subnets, func(smaller netip.Prefix) bool {
			if !subnet.Overlaps(smaller) {
				return false
			}
			malformed = append(malformed, fmt.Sprintf("spec.ipam.podCIDRs: %s, which is in %q", smaller, s))
			return true
		})
		subnets = append(subnets, subnet)
	}
	return subnets, malformed
}

// NodeAddresses returns the addresses that a CiliumNode names as the node's own, by the names under which its agent
// takes them from the pool. Trim drops them.
func NodeAddresses(cn *ciliumv2.CiliumNode) map[string][]netip.Addr {
	own := map[string][]netip.Addr{}
	add := func(owner, text string) {
		if a, err := address.Parse(text); err == nil {
			own[owner] = append(own[owner], a)
		}
	}
	for _, a := range cn.Spec.Addresses {
		if a.Type == addressing.NodeCiliumInternalIP {
			add("router", a.IP)
		}
	}
	add("health", cn.Spec.HealthAddressing.IPv4)
	add("health", cn.Spec.HealthAddressing.IPv6)
	add("ingress", cn.Spec.IngressAddressing.IPV4)
	add("ingress", cn.Spec.IngressAddressing.IPV6)
	return own
}

// Reference returns a CiliumNode to record events on.
func Reference(n pool.NodePool) *ciliumv2.CiliumNode {
	return &ciliumv2.CiliumNode{
		TypeMeta:   metav1.TypeMeta{APIVersion: ciliumv2.SchemeGroupVersion.String(), Kind: ciliumv2.CNKindDefinition},
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: types.UID(n.UID), ResourceVersion: n.ResourceVersion},
	}
}

// Trim is a cache transform: it keeps what FromCiliumNode reads and the identity of the object,
// since a cluster has thousands of CiliumNodes and most of each is of no use here.
func Trim(obj any) (any, error) {
	cn, ok := obj.(*ciliumv2.CiliumNode)
	if !ok {
		return obj, nil
	}
	trimmed := &ciliumv2.CiliumNode{
		TypeMeta: cn.TypeMeta,
		ObjectMeta: metav1.ObjectMeta{
			Name:              cn.Name,
			UID:               cn.UID,
			ResourceVersion:   cn.ResourceVersion,
			Generation:        cn.Generation,
			CreationTimestamp: cn.CreationTimestamp,
			DeletionTimestamp: cn.DeletionTimestamp,
			OwnerReferences:   cn.OwnerReferences,
		},
	}
	if len(cn.ManagedFields) > 0 {
		// That there is field tracking is of interest, what is in it is not.
		trimmed.ManagedFields = []metav1.ManagedFieldsEntry{{}}
	}
	trimmed.Spec.IPAM.Pool = cn.Spec.IPAM.Pool
	trimmed.Spec.IPAM.PodCIDRs = cn.Spec.IPAM.PodCIDRs
	trimmed.Status.IPAM.Used = cn.Status.IPAM.Used
	trimmed.Status.IPAM.ReleaseIPs = cn.Status.IPAM.ReleaseIPs
	return trimmed, nil
}

// handshakes returns the release handshakes in release-ips; nil if there are none. Keys that are not addresses are left
// out, and probes that wait for their answer. The key of another probe was left behind by a write of the labels, which
// makes the agent forget it (Cilium fact 28): it is withdrawn as any handshake without an answer is.
func handshakes(keys map[string]ipamtypes.IPReleaseStatus, probes []netip.Addr) map[netip.Addr]pool.Handshake {
	var states map[netip.Addr]pool.Handshake
	for key, status := range keys {
		a, err := address.Parse(key)
		if err != nil || slices.Contains(probes, a) {
			continue
		}
		if states == nil {
			states = map[netip.Addr]pool.Handshake{}
		}
		switch state := pool.Handshake(status); state {
		case pool.MarkedForRelease, pool.ReadyForRelease, pool.Released, pool.DoNotRelease:
			states[a] = state
		default:
			states[a] = pool.OtherState
		}
	}
	return states
}
