// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package watch passes the events of informers on as pairs of versions of an object.
package watch
