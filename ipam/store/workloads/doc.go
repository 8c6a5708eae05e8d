// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package workloads reads the workloads that addresses are kept for, of whatever kinds are
// configured: from watches, and from the API server itself where something is to be given up.
//
// It only reads, and decides nothing. A kind whose API is not installed is waited for: what is
// asked about it meanwhile is not known, which is not the same as gone.
package workloads
