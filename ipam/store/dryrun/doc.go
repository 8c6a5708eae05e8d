// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package dryrun keeps the controller from writing: requests that would store something are refused, and each write
// that is sent as a dry run, so that the API server validates it, is logged.
//
// It works on the HTTP requests of all clients of a configuration. The clients must send their writes as dry runs, for
// example with client.Options.DryRun.
package dryrun
