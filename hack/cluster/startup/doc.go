// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package startup implements the start and the exit of the programs of a cluster: flags, log level, signals, and the error
// message.
package startup
