// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package subnetplan decides which node has which subnet: which subnets a node lacks, which are orphaned, which node
// inherits them and when, and which entries the first pool of a node contains.
//
// A subnet belongs to the node that its NodeSubnet names until that Node is deleted. The package is pure: it reads API
// objects as values, and may not use a client, a cache, a clock or a goroutine.
package subnetplan
