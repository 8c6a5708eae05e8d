// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package reconnect lets test programs watch a cluster again as soon as the API server is available again.
//
// The backoff of a client-go watch grows with each failed attempt, up to a minute, and is reset only after two minutes
// without a failure. If a test kills the API server every few seconds, the witness and the simulated nodes would see no
// events for longer than the test waits. The programs of fixedip must not use this package: in tests they must have the same
// backoff as in production.
package reconnect
