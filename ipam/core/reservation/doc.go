// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package plan decides about the subnets of the cluster and about pods that do not run as they should.
//
// It is pure: every function answers from its arguments. It reads API objects as values; it may not read a cache, call an
// API, or look at a clock.
package plan
