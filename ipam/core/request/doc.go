// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package request reads the addresses that a pod requests in the annotations of the pod and of its workload, in the format
// of fixedip or of Calico.
//
// It is pure: it reads Kubernetes objects as values, and uses no pool, cache or API. It does not decide whether an address
// is available.
package request
