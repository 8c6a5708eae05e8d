// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package pool models the address pool of one node in Cilium's CRD mode: its subnets, its entries, the meaning of each
// entry, and the addresses that the Cilium agent reports as used. It decides which changes of a pool are allowed, and why an
// address is not available.
//
// The package is pure: it uses no Kubernetes objects, clients, clocks or goroutines. Package ciliumpool reads and writes
// CiliumNodes, and encodes and decodes their entries.
package pool
