// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodepool decides which entries the pool of one node needs in addition to those of fixed addresses: the number of
// dynamic entries and the withdrawal of surplus ones (watermark.go), the entries of strict nodes, whose pools
// have no dynamic entries (strict.go), and the end of cooldowns (state.go). State combines these decisions.
//
// The package is pure: the result of every function depends only on its arguments.
package nodepool
