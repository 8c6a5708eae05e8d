// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package fixedip is the scheduler plugin FixedIP. It places a pod on the node that owns its reserved address, and
// claims the address before the pod is bound.
//
// The package is glue between the scheduler framework and package binder: it translates errors to statuses and adds refused
// pods to a queue. Package binder decides and documents the algorithm, package cache is the view of the cluster that it
// decides from, and package requeue puts waiting pods back into the scheduling queue.
//
// Filter and PostFilter have no side effects outside this process, and no extension point of the scheduling cycle calls the
// API server. Each profile has a Plugin. The profiles share the cache, since they claim from the same pools.
package fixedip
