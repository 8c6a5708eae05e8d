// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package fixedips reads FixedIPs: it keeps a ledger in sync with their informer and counts them by state. It writes
// nothing.
package fixedips
