// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package requeue keeps the pods that the plugin refused, with the causes that each of them waits for, and puts a pod back
// into the scheduling queue when one of its causes occurs.
//
// Causes and changes of the cluster are plain values (WakeOn and Event), so that the queue finds the pods of an event in an
// index. Two decisions depend on the state of the cluster: whether an address that became free helps a pod, and which slots
// of a workload are free. A Domain makes both. One goroutine calls the Domain, without the lock of the queue.
//
// A pod leaves the queue when it is requeued, when Reserve accepts it for a node, or when it is deleted. To requeue a pod,
// the queue activates it (framework.Handle.Activate), which skips the scheduler's backoff. So the queue has limits of its
// own: except for Queue.Retry, it requeues a pod at most once per second. For each address that becomes free, it requeues
// only one of the pods that wait for any address, and one of those that request addresses. Identifiers with the word wake
// are about requeueing.
//
// The package makes no decision about addresses, and calls no API.
package requeue
