// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package reconnect lets test programs watch a cluster again as soon as its API server is back.
//
// A watch of client-go waits longer after each failed attempt, up to a minute, and resets the wait only after two minutes
// without a failure. If a test kills the API server every few seconds, its witness and simulated nodes would see nothing
// for longer than the test waits. The programs of fixedip must not use this: they keep the waits that they have in
// production.
package reconnect
