// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package gen builds the objects of tests. Each builder returns a small object with the given name. Every builder except
// CiliumNode also takes changes from the test, and applies them to the object. A Pod and a FixedIP lack fields that the API
// server requires: a test that creates such an object there adds these fields. A package of tests that needs the same change
// for all its objects wraps a builder.
//
// The package imports only API types and the types of pool entries, so that the tests of all packages above ipam/core/pool can
// use it.
package gen
