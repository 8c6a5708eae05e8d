// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package heap decides how much the heap of a program may grow before garbage is collected. Nearly all of the heap of both programs
// are caches, so the growth decides how much memory a program needs beyond these: see ADR 0060.
package heap
