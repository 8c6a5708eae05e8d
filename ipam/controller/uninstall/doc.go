// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package uninstall prepares a cluster for the removal of the controller, so that nothing waits for a controller that does
// not run any more.
//
// It stops the controller and becomes the leader in its place. Then it removes the finalizer of each FixedIP, which would block
// the deletion of its namespace and of the CustomResourceDefinitions, and the annotations that keep autoscalers from removing
// nodes. FixedIPs, NodeSubnets, pools and pods stay as they are otherwise. The controller of a later installation adds the
// finalizers and the annotations again.
package uninstall
