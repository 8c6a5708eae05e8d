// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package requeue keeps the pods that the plugin refused, with what each of them waits for, and puts a pod back
// into the scheduling queue when that happens.
//
// What a pod waits for and what happened are plain values (WakeOn and Event), so that an event finds its pods in
// an index. Two causes need a look at the cluster: whether an address that became free helps a pod, and which
// slots of a workload are free. Domain answers both, and is asked by one goroutine without the lock of the queue.
//
// A pod leaves the queue when it is woken, gets an address, or is deleted. Activating a pod skips the scheduler's
// backoff, so that the queue has a limit of its own: a pod is woken at most once per second, and one address that
// became free wakes one pod at a time.
//
// The package decides nothing about addresses, and calls no API.
package requeue
