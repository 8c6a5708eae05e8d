// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package workloads reads the workloads of the configured kinds: from informers, and from the API server before something
// is released.
//
// It only reads, and decides nothing. If the API of a kind is not installed, its workloads are unknown, which is not the
// same as deleted; the package waits for the API.
package workloads
