// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package dryrun prevents the controller from writing: it refuses requests that would store a change, and logs each
// different write that the API server accepts as a dry run. The API server validates a dry run and does not store it.
//
// The package filters the HTTP requests of all clients of a configuration. The clients must send their writes as dry runs,
// for example with client.Options.DryRun.
package dryrun
