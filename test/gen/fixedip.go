// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package gen

import (
	"net/netip"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/pool"
)

// FixedIP returns a FixedIP of Namespace that reserves 10.0.1.6 for the pod of the same name.
func FixedIP(name string, change ...func(*v1alpha1.FixedIP)) *v1alpha1.FixedIP {
	return changed(&v1alpha1.FixedIP{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name},
		Spec:       v1alpha1.FixedIPSpec{IPs: []string{"10.0.1.6"}, PodName: name},
	}, change)
}

// Owner returns a change that makes a StatefulSet the workload of a FixedIP.
func Owner(statefulSet string) func(*v1alpha1.FixedIP) {
	return func(r *v1alpha1.FixedIP) {
		r.Spec.Owner = v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: statefulSet}
	}
}

// CiliumNode returns a CiliumNode without a pool.
func CiliumNode(name string, podCIDRs ...string) *ciliumv2.CiliumNode {
	cn := &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	cn.Spec.IPAM.PodCIDRs = podCIDRs
	return cn
}

// NodePool returns the pool of a node with one subnet and these entries. Key of entries: the address.
func NodePool(name, subnet string, entries map[string]pool.Entry, change ...func(*pool.NodePool)) pool.NodePool {
	n := &pool.NodePool{
		Name: name, PodCIDRs: []string{subnet}, Subnets: []netip.Prefix{netip.MustParsePrefix(subnet)},
		Entries: map[netip.Addr]pool.Entry{}, Used: map[netip.Addr]string{},
	}
	for a, e := range entries {
		n.Entries[netip.MustParseAddr(a)] = e
	}
	return *changed(n, change)
}

// UsedBy returns a change that adds addresses to those that the agent of a node reports as used. owner is the pod that uses
// them, "namespace/name"; empty: the agent reports no owner.
func UsedBy(owner string, addrs ...string) func(*pool.NodePool) {
	return func(n *pool.NodePool) {
		for _, a := range addrs {
			n.Used[netip.MustParseAddr(a)] = owner
		}
	}
}
