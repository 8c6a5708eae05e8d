// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package subnet owns the subnets of nodes: NodeSubnets, spec.ipam.podCIDRs of CiliumNodes with the first entries of
// their pools, and the condition of FixedIPs that says whether their subnet has a node.
//
// # A subnet stays with its node until the Node is gone
//
// The NodeSubnet is the claim, and everything follows from it:
//
//	join      create a NodeSubnet for a free CIDR, then list all NodeSubnets; withdraw it if another one overlaps
//	return    a CiliumNode that was deleted and made again gets the subnets back that its NodeSubnets name
//	orphan    the Node and its CiliumNode are gone, read live: status.orphanedSince starts the grace period
//	inherit   the NodeSubnet names the heir from now on, which is then given the subnet like one that returns
//	release   no FixedIP reserves an address in an orphan and no pool has one: the NodeSubnet is deleted
//
// # Why two controllers never assign overlapping subnets
//
// Each creates its claim before it lists all claims, so that of two claims that overlap the later one sees the
// earlier, whatever their mask sizes. Equal claims have the same name, which only one can create.
//
// A subnet is written to a CiliumNode only after its NodeSubnet names the UID of that CiliumNode. A subnet changes
// hands only by an update that names the version of the NodeSubnet that was read before the CiliumNode of its node was
// seen gone. So a controller that is behind either loses the update, or writes to a CiliumNode that does not exist any
// more, which the test of its UID refuses.
//
// Joining costs a number of requests that does not depend on the number of nodes. No lock is held during a request,
// and nothing in memory decides: a controller that stops between two steps is resumed from the objects alone. Workers of
// one process only remember for some seconds which subnets they have tried, so that they do not try the same one.
//
// # The first pool
//
// The first pool of a CiliumNode contains every address that a live pod of the node runs with (Cilium facts 7 and 26).
// Two are out of reach: the address of a pod whose status does not have it yet, and an address that lives on another
// node than its home while that home is gone too, since no pool says where it lives.
//
// The package may not decide about single addresses, and it fills pools only once: with the first entries of a subnet.
package subnet
