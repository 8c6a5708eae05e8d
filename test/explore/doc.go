// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package explore visits the states of the address protocol, up to a limit, at a small scope: two nodes, three
// addresses, two pod names with at most two pods one after the other, at most two schedulers, one controller, agents
// that lag, and a bounded number of crashes.
//
// The edits of claims, takeovers, releases and ended cooldowns, and the judgement of evidence, are those of the
// product's own pure core (ipam/core/pool, ipam/core/agentview). All edits of entries except an undo are applied with
// the tests that the real patch contains. This package models the rules of Cilium's allocator (Cilium facts 1-4, 7,
// 13, 24 and 30), a kubelet, and the steps of the schedulers and of the controller. A step of a scheduler or of the
// controller is one request to the API server, so that every interleaving of requests is visited. Migrations are not
// modelled.
//
// Caches are arbitrarily old: a scheduler decides from a copy of the pools that was taken at any time before. The caches of
// the controller are not modelled: the controller may begin any task at any time, and only its checks at the API server
// prevent a violation. There are no clocks: a rule that is safe only because time has passed does not hold here.
//
// The random model (test/sim) runs the whole product through long histories, but visits few of them. This model visits
// all histories within its scope, up to the limit; they are short.
package explore
