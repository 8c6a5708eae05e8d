// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package product starts the programs of fixedip in a cluster of package cluster, each as a separate process with the
// service account and the rights of the manifests.
package product
