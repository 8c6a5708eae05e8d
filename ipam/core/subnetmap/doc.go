// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package subnetmap describes the use of every address of a node's subnets, so that a command can draw the subnets.
//
// It is pure: the result depends only on the ledger and the pool, and the package writes nothing. It defines the symbol of
// each state; the command decides everything else about the picture.
package subnetmap
