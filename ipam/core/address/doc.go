// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package address implements the arithmetic of addresses and subnets: which addresses of a subnet pods may use, in which
// order they are taken, and which subnets of a cluster pool are free.
//
// It is pure: it uses netip and netipx only, and no Kubernetes or Cilium types, clock, client or goroutine.
package address
