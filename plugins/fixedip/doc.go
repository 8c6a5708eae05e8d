// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package fixedip is the scheduler plugin FixedIP. It places a pod on the node whose pool has the address that is
// reserved for the pod, or else on a node with a free address. It claims the address before the pod is bound.
//
// The package connects the scheduler framework to package binder: it translates errors to statuses and adds refused pods
// to a queue. Package binder implements and documents the algorithm, and decides from package cache, the view of the
// cluster. Package requeue puts waiting pods back into the scheduling queue.
//
// Filter and PostFilter have no side effects outside this process, and no extension point of the scheduling cycle calls
// the API server. Each profile has a Plugin of its own. All profiles share the cache, because they claim from the same
// pools.
package fixedip
