// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package source feeds the queues of controllers: from what the ledger has learned (Feed), from a periodic resync of
// every identity (Resync), and from watches through the predicates that leave out what these two report. It also makes
// the queues.
//
// It may not read an object or decide what a controller does with a request.
package source
