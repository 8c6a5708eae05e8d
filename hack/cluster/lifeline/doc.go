// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package lifeline terminates a process when its parent process exits, so that the processes of a killed demo or test do not
// keep running.
package lifeline
