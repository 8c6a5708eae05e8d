// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package suite contains helpers for tests with a control plane of their own.
package suite
