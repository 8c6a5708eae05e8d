// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package world makes the objects of a large cluster, and writes them into the etcd of an API server that has not started
// yet. It is the cluster of the benchmarks; it runs nothing itself.
package world
