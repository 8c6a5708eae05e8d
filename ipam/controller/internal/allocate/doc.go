// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package allocate writes the pool entries of a pod's addresses: those that the FixedIP of the pod reserves, and those that
// the pod runs with and that become its fixed addresses.
//
// A dynamic entry becomes the owned entry of a pod in two steps. Withdraw puts the address into cooldown, so that the agent
// gives it to no pod. When the evidence shows that no other pod has the address (see gather.Prove), Allocate writes the owned
// entry. So no other pod gets the address, even if the node was rebooted and the status of the pod is from before the reboot
// (ADR 0025).
//
// The package does not decide which addresses a pod has: package reclaim and package conformance do.
package allocate
