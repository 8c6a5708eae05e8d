// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package subnet owns the subnets of nodes: NodeSubnets, spec.ipam.podCIDRs of CiliumNodes with the first entries of their
// pools, and the condition SubnetAvailable of FixedIPs.
//
// # A subnet stays with its node until the Node is gone
//
// A NodeSubnet is the claim of a subnet for a node. The package creates, changes and deletes NodeSubnets in these cases:
//
//	join      create a NodeSubnet for a free CIDR, or for a CIDR of Node.spec.podCIDRs, then list all NodeSubnets;
//	          delete the new NodeSubnet again if another one overlaps it
//	existing  a CiliumNode has a subnet that no NodeSubnet claims for it: create the NodeSubnet, or change it if its
//	          node no longer has the subnet
//	reserved  a FixedIP reserves an address that is in a cluster pool and in no claimed subnet: create the NodeSubnet
//	return    a CiliumNode that was deleted and created again gets the subnets of the NodeSubnets that name its node
//	orphan    the Node and its CiliumNode are gone, as read from the API server, or the subnet never had a node:
//	          status.orphanedSince starts the grace period
//	inherit   the NodeSubnet is changed to name the inheriting node, which then gets the subnet like a node that returns
//	release   the grace period of an orphaned subnet is over or the subnet never had a node, no FixedIP reserves an
//	          address in the subnet, and no pool has an entry in it: the NodeSubnet is deleted
//
// # Why two controllers never assign overlapping subnets
//
// For a moment two processes may act as the leader, and several workers of one process assign subnets at once. Each
// worker creates its claim before it lists all claims. So the worker that creates the later of two overlapping claims
// sees the earlier claim, even if their mask sizes differ. Claims of the same CIDR have the same name, so only one of
// them can be created.
//
// A subnet is written to a CiliumNode only after its NodeSubnet names the UID of that CiliumNode. To change the node of
// a NodeSubnet, a controller reads the NodeSubnet, checks that the previous node no longer has the subnet, and then
// updates the NodeSubnet with the version that it read as a precondition. So a controller that decides from outdated
// objects either fails to update the NodeSubnet, or patches a CiliumNode that no longer exists. The patch tests the UID,
// so the API server refuses it.
//
// The number of requests for a node that joins does not depend on the number of nodes. No lock is held during a request,
// and no decision depends on memory: if a controller stops between two steps, the next one continues from the objects
// alone. There are two exceptions, which save requests. For some seconds a process remembers the subnets that it has tried
// to claim, so that its workers do not try to claim the same subnet. For a minute it remembers the volumes of a waiting pod.
//
// # The first pool
//
// The first pool of a CiliumNode contains the addresses that live pods of the node run with (Cilium facts 7 and 26).
// An address that no FixedIP reserves may be missing in two cases: the status of its pod has no IP yet, or the home
// of the address is another node that is gone too.
//
// The package adds entries to a pool only when it adds a subnet to the node. After that, other packages maintain the
// pool. The only other entries that it writes are cooldown entries: they replace the move-target entries of addresses that
// were about to leave the added subnet.
package subnet
