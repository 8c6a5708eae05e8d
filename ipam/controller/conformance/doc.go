// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package conformance compares running pods with their FixedIPs and pool entries, and corrects differences. It has two
// controllers, which use the rules of package ipam/core/conformance:
//
//   - verify compares a running pod with its FixedIP. It owns the condition AsReserved and status.mismatchPodUID. It evicts
//     pods that run with other IPs than their FixedIPs name or have no CiliumEndpoint, one member of a workload at a time. A
//     pod is evicted only if its mismatch policy is Restart, a restart helps, and a controller creates the pod again.
//   - adopt makes a selected pod of another scheduler the owner of the IP that it runs with. If the IP has a dynamic
//     entry, adopt withdraws that entry first, and writes the owned entry when the evidence shows that no other pod has
//     the IP. The FixedIP controller then creates the FixedIP, as for every claim. adopt also restores the entry that a
//     pod of our scheduler has lost. If that is not possible, it evicts the pod or only reports the problem.
//
// A decision from the caches is made again from the API server before a pool is written or a pod is evicted. The
// package must not write the spec of a FixedIP. It gives an IP only to a pod that runs with the IP, or that was bound
// because of a pool entry of that IP.
package conformance
