// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package startup contains the common start and end of the programs of a cluster: flags, log level, lifeline,
// signals, and the error message.
package startup
