// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// fill has node n with this pool.
func (s *stage) fill(entries map[string]pool.Entry, used map[string]string) {
	s.t.Helper()
	var node ciliumv2.CiliumNode
	if err := s.api.Get(s.t.Context(), client.ObjectKey{Name: "n"}, &node); err != nil {
		s.t.Fatal(err)
	}
	// The fake API server counts none, and leaves out a 0.
	node.Generation = 1
	node.Spec.IPAM.Pool = ipamtypes.AllocationMap{"10.0.1.2": {}}
	for a, e := range entries {
		node.Spec.IPAM.Pool[a] = ciliumpool.EncodeEntry(e)
	}
	node.Status.IPAM.Used = ipamtypes.AllocationMap{}
	for a, owner := range used {
		node.Status.IPAM.Used[a] = ipamtypes.AllocationIP{Owner: owner}
	}
	if err := s.api.Update(s.t.Context(), &node); err != nil {
		s.t.Fatal(err)
	}
}

// poolOwners are those of node n. Key: the address.
func (s *stage) poolOwners() map[string]string {
	s.t.Helper()
	var node ciliumv2.CiliumNode
	if err := s.api.Get(s.t.Context(), client.ObjectKey{Name: "n"}, &node); err != nil {
		s.t.Fatal(err)
	}
	owners := map[string]string{}
	for a, e := range node.Spec.IPAM.Pool {
		owners[a] = e.Owner
	}
	return owners
}

// syncLedger gives the ledger node n as the API server has it.
func (s *stage) syncLedger() {
	s.t.Helper()
	var node ciliumv2.CiliumNode
	if err := s.api.Get(s.t.Context(), client.ObjectKey{Name: "n"}, &node); err != nil {
		s.t.Fatal(err)
	}
	s.ledger.SetNode(ciliumpool.FromCiliumNode(&node))
}
