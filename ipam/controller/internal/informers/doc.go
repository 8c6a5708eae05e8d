// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package informers says which objects the controller watches and which of their fields its cache holds.
//
// The informers themselves are client-go's, run by controller-runtime's cache. A transform strips each object to
// the fields that the controller reads before it is stored, because a cluster has far more pods and
// CiliumEndpoints than anything else. The package makes no decisions and reads no objects: a field that a
// decision needs is added to the transform of its kind, or the decision never sees it.
package informers
