// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package requeue keeps the pods that the plugin refused, with the causes that each of them waits for, and puts a pod back
// into the scheduling queue when one of its causes occurs.
//
// Causes and changes of the cluster are plain values (WakeOn and Event), so that an event finds its pods in an index. Two
// causes need a look at the cluster: whether an address that became free helps a pod, and which slots of a workload are
// free. Domain answers both. One goroutine calls it, without the lock of the queue.
//
// A pod leaves the queue when it is woken, gets an address, or is deleted. Activating a pod skips the scheduler's backoff,
// so the queue has limits of its own: it wakes a pod at most once per second, and one pod for each address that becomes
// free.
//
// The package makes no decision about addresses, and calls no API.
package requeue
