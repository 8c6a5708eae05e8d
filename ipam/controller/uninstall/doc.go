// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package uninstall prepares a cluster for the removal of the controller, so that nothing waits for a controller that does
// not run any more.
//
// It stops the controller, becomes the leader in its place, and removes what only a controller would remove: the finalizer of
// each FixedIP, which would block the deletion of its namespace and of the CustomResourceDefinitions, and the annotations that
// keep autoscalers from removing nodes. FixedIPs, NodeSubnets and pools stay as they are, and no pod is touched. The
// controller of a later installation puts the finalizers and the annotations back.
package uninstall
