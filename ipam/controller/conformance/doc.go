// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package conformance keeps pods that run as they are recorded. It has two controllers, which decide by package
// ipam/core/conformance:
//
//   - verify compares a running pod with its FixedIP. It owns the condition Mismatch and status.mismatchPodUID, and
//     evicts a pod with a wrong IP or without a CiliumEndpoint: one member of a workload at a time.
//   - adopt makes a pod that another scheduler placed the owner of the IP that it runs with, if it asks for that, and
//     restores what a pod of our scheduler has lost. It withdraws an IP that is offered to all pods, and writes
//     the entry once the agent has confirmed that the pod has the IP. The FixedIP controller creates the FixedIP of it, as
//     of every claim.
//
// Whatever is found in the caches is found again at the API server before anything is written or evicted. The package
// may not write a FixedIP, and no pool entry but for the pod that runs with the IP or was bound because of it.
package conformance
