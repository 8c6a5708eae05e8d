// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package layout describes a cluster of real nodes on one machine: its versions, addresses and settings, and the content of
// configuration files. It neither reads nor changes the machine. Package realcluster starts the described cluster.
package layout
