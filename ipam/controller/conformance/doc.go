// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package conformance keeps pods that run as they are recorded. It has two controllers, which decide by package
// ipam/core/conformance:
//
//   - verify compares a running pod with its FixedIP. It owns the condition Mismatch and status.mismatchPodUID, and
//     evicts a pod with a wrong IP or without a CiliumEndpoint: one member of a workload at a time (evict.go).
//   - adopt makes the FixedIP of a pod that another scheduler placed and that asks for its IP to be fixed, and restores
//     what a pod of our scheduler has lost. The FixedIP comes first: the FixedIP controller writes the owner of the
//     entry, while the pod provably runs with the IP, and says with the condition Ready when the agent has acknowledged
//     it.
//
// Whatever is found in the caches is found again at the API server before anything is written or evicted. The package
// may not write a pool entry that is not restored to its previous owner.
package conformance
