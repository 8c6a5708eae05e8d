// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package subnet owns the subnets of nodes: NodeSubnets, spec.ipam.podCIDRs of CiliumNodes with the first entries of their
// pools, and the condition SubnetAvailable of FixedIPs.
//
// # A subnet stays with its node until the Node is gone
//
// A NodeSubnet is the claim of a subnet for a node. The package creates, changes and deletes NodeSubnets in these cases:
//
//	join      create a NodeSubnet for a free CIDR, then list all NodeSubnets; delete it again if another one overlaps it
//	return    a CiliumNode that was deleted and created again gets the subnets of the NodeSubnets that name its node
//	orphan    the Node and its CiliumNode are gone, as read from the API server: status.orphanedSince starts the grace
//	          period
//	inherit   the NodeSubnet is changed to name the inheriting node, which then gets the subnet like a node that returns
//	release   no FixedIP reserves an address in an orphaned subnet, and no pool has an entry in it: the NodeSubnet is
//	          deleted
//
// # Why two controllers never assign overlapping subnets
//
// Each controller creates its claim before it lists all claims. So the controller that creates the later of two overlapping
// claims sees the earlier one, even if their mask sizes differ. Claims of the same CIDR have the same name, so that only one
// controller can create them.
//
// A subnet is written to a CiliumNode only after its NodeSubnet names the UID of that CiliumNode. The node of a NodeSubnet
// is changed only by an update that requires the version that was read before the previous node was found to be gone. So a
// controller that is behind either fails to update the NodeSubnet, or patches a CiliumNode that no longer exists, which
// the test of the UID refuses.
//
// The number of requests for a node that joins does not depend on the number of nodes. No lock is held during a request,
// and no decision depends on memory: if a controller stops between two steps, the next one continues from the objects
// alone. One process only remembers for some seconds the subnets that it has tried to claim, so that its workers do not try
// the same one.
//
// # The first pool
//
// The first pool of a CiliumNode contains every address that a live pod of the node runs with (Cilium facts 7 and 26). Two
// kinds of addresses may be missing if no FixedIP reserves them: the address of a pod whose status has no IP yet, and an
// address whose home is another node that is gone too.
//
// The package may not decide about single addresses, and it fills pools only once: with the first entries of a subnet.
package subnet
