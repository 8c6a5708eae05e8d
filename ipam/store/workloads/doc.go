// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package workloads reads the workloads of the configured kinds: from informers, and from the API server before an address
// is allocated or released.
//
// A pod of a Deployment names only its ReplicaSet. Store.Controller returns the workload that controls a ReplicaSet.
//
// The package writes nothing and makes no decisions. If the API of a kind is not installed, the workloads of that kind are
// unknown, which is not the same as deleted. The package then waits for the API.
package workloads
