// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package world creates the objects of the large cluster of the benchmarks, and writes them into the etcd of an API server
// that has not started yet.
package world
