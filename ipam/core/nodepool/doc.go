// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodepool decides what the pool of one node has to have beside the entries of fixed addresses: how many dynamic
// entries and which of them are taken back from the agent by the release handshake (watermark.go), the entries of strict
// nodes, whose pools have owned entries only (strict.go), and when a cooldown ends (state.go). State combines these
// decisions.
//
// It is pure: the result of every function depends on its arguments only. It may not read a cache, call an API or look at a
// clock.
package nodepool
