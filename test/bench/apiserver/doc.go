// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package apiserver starts an API server that has all objects of a world, for the benchmarks. No controller manager runs.
package apiserver
