// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package subnetmap describes the use of every address of a node's subnets, so that a command can draw a picture of it.
//
// It is pure: the result depends only on the ledger, and the package writes nothing. How a state looks like is decided by the
// command, except for its symbol.
package subnetmap
