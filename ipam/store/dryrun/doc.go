// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package dryrun keeps the controller from writing: it sends each write as a dry run, so that the API server validates it,
// and logs what would have been written. Nothing is stored.
//
// It decides nothing and knows nothing about addresses.
package dryrun
