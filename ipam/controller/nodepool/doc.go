// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodepool keeps the address pool of each CiliumNode.
package nodepool
