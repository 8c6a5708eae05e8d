// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package redact replaces names and addresses in text by tokens, so that an archive for a bug report does not contain them.
//
// One Redactor serves all files of an archive: the same name always gets the same token, so that relations stay visible. The
// first subnet of a cluster becomes subnet-1/24, for example, and an address in it subnet-1+254.
//
// A name is replaced if it is known: the caller adds the names of objects, and Learn finds names in log lines and messages.
// Addresses are found by their form. The package is pure and reads no object.
package redact
