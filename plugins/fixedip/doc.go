// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package fixedip is the scheduler plugin FixedIP. It places a pod on the node that owns its reserved address, and
// claims the address before the pod is bound.
//
// The package is glue between the scheduler framework and the binder: it translates errors to statuses and keeps the
// queue of waiting pods. The binder decides (see package binder for the algorithm), the cache is the view that it decides
// from, and requeue wakes the pods that wait.
//
// Filter and PostFilter have no side effects outside this process, and no extension point of the scheduling cycle calls
// the API server. Each profile has a Plugin. The profiles share the cache, since they claim from the same pools.
package fixedip
