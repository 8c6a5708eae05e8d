// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package allocate writes the entries of addresses that are a pod's: those that its FixedIP reserves, and those that it
// runs with and that it is to keep.
//
// An address that the pool offers to all pods becomes a pod's own in two steps, between which the agent has to confirm that
// the pod has it (see gather.Prove). Withdraw takes it out of the offer. Allocate gives it to the pod: by then the agent
// gives it to no other, even if the node was rebooted and the status of the pod is from before.
//
// It does not decide what a pod is to have: package reclaim and package conformance do.
package allocate
