// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package watch turns each event of an informer into a function call with the versions of the object before and after it.
package watch
