// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package lifeline ends a process when the process that started it ends, so that a killed demo or test leaves no process
// behind.
package lifeline
