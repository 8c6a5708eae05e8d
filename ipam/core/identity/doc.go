// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package identity decides which pods have a fixed address and to which identity the address belongs, and reads the
// policies that annotations define.
//
// The package is pure: it reads Kubernetes objects as values, and uses no cache and no API.
package identity
