// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package conformance compares a running pod with its FixedIP, its pool entries and its CiliumEndpoint, and decides how to
// handle a difference: report it in the condition AsReserved of the FixedIP, evict the pod, adopt the IPs that the pod runs
// with, or restore an entry that the pod has lost.
//
// If a pod runs with other IPs than its FixedIP names, the FixedIP takes precedence: the pod is evicted, and the next pod
// starts with the fixed IPs. The mismatch is only reported if the mismatch policy is Report, if the pod is a bare pod, or if
// a restart does not help. If another scheduler placed the pod and the failover policy is Reassign, the controller may replace
// the FixedIP instead. The IPs that a pod runs with are adopted in two cases. In the first case, another scheduler placed the
// pod, the pod is selected for adoption (identity.Adoption), and the pod has no FixedIP with addresses. In the second case, our
// scheduler placed the pod, and the pod runs with an IP of a family in which no address is reserved for the pod.
//
// The condition identifies its pod by UID and never by time, because the clocks of an API server, a kubelet and a controller
// differ. Times are used only for grace periods, which begin and end on the clock of the controller. If a replica with
// another clock takes over, a grace period is shorter or longer by the difference. Every eviction is decided again from live
// objects, so that a skew of minutes can only make a restart early or late.
//
// The package is pure: it has no client, clock, goroutine or context.
package conformance
