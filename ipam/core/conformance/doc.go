// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package conformance compares a pod that runs with what is recorded for it, and says what to do about a difference: report
// it in the condition Mismatch of the FixedIP, evict the pod, adopt the IPs that it runs with, or restore the entry that it
// has lost.
//
// If a pod runs with other IPs than its FixedIP names, the FixedIP takes precedence: the pod is evicted, and the next pod
// starts with the fixed IPs. The one exception is adoption, for pods that another scheduler placed and that have no FixedIP
// yet.
//
// The condition identifies its pod by UID and never by time, because the clocks of an API server, a kubelet and a controller
// differ. Times are used only for grace periods, which begin and end on the clock of the controller. If a replica with
// another clock takes over, a grace period is shorter or longer by the difference. Every eviction is decided again from live
// objects, so that a skew of minutes costs no more than an early or a late restart.
//
// The package is pure: it has no client, clock, goroutine or context.
package conformance
