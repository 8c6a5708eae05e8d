// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package conformance compares a pod that runs with what is recorded for it, and says what to do about a difference:
// report it in the condition Mismatch of the FixedIP, evict the pod, adopt the IPs that it runs with, or restore the
// entry that it has lost.
//
// A FixedIP is right and the pod is wrong: a pod that runs with other IPs is evicted and starts again with its own. The
// one exception is adoption, for pods that another scheduler placed and that have no FixedIP yet.
//
// Whom a condition is about is compared by UID, never by time: the clocks of an API server, a kubelet and a controller
// differ. Times are only used for grace periods, which begin and end on the clock of the controller. If a replica with
// another clock takes over, a grace period is shorter or longer by the difference; every eviction is decided again from
// live objects, so that a skew of minutes costs an early or a late restart and nothing else.
//
// The package is pure: it has no client, clock, goroutine or context.
package conformance
