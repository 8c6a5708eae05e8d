// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package check compares the pools, FixedIPs, NodeSubnets, pods and CiliumEndpoints of a cluster, as fsck does with the
// structures of a file system, and returns a Problem for each contradiction.
//
// It is pure: the caller reads the objects. They cannot be read at one instant, so a change in between looks like a problem.
// A problem counts only if a second reading, some seconds later, shows it too: see Lasting.
package check
