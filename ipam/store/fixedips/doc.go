// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package fixedips brings what FixedIPs keep from their watch into a ledger. It writes nothing.
package fixedips
