// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package explore visits the states of the address protocol, up to a limit, at a small scope: two nodes, three
// addresses, two pod names with at most two pods one after the other, at most two schedulers, one controller, agents
// that lag, and a bounded number of crashes.
//
// The product's own pure core (ipam/core/pool, ipam/core/agentview) returns the edits of claims, takeovers, releases and
// ended cooldowns, and judges evidence. All edits of entries except an undo are applied with the tests that the real patch
// contains. This package models the rules of Cilium's allocator (Cilium facts 1-4, 7, 10, 13, 24 and 30), a kubelet, and the
// steps of the schedulers and of the controller. It has no migrations.
//
// A step of a scheduler or of the controller contains at most one write of a pool, so that the search visits every
// interleaving of these writes. The read of the pods after an agent barrier is a step of its own. Any other read of the
// controller is part of the step that depends on it.
//
// Caches can be arbitrarily old: a scheduler may decide from a copy of the pools and FixedIPs that was taken at any time
// before. The caches of the controller are not part of a state: the controller may begin any task at any time, and only its
// checks at the API server prevent a violation. There are no clocks, so a rule that is safe only because of a delay leads to
// a violation. The one assumption about time is that of runsUnseen.
//
// The random model (test/sim) runs the whole product through long histories, but covers few of all possible histories.
// This model covers all histories within a scope, up to the limit, but they are short.
package explore
