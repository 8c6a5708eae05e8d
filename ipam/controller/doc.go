// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package controller sets up the IPAM controller for Cilium's CRD mode: it creates what the controllers in its
// sub-packages share, connects them to the watches, and adds them to a manager.
//
// It is wiring. It may not read or write an object, or decide about an address.
package controller
