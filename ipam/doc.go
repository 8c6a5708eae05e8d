// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package ipam is the root of the packages that assign, record and release addresses. It has no code of
// its own. Each part may import the parts above it only:
//
//	api         API types
//	core        decisions, as pure functions: no client, clock, goroutine or context. Kubernetes objects
//	            are values
//	store       reading and writing API objects. Only ciliumpool knows how Cilium spells a pool
//	controller  when it happens: the glue to controller-runtime
//
// The scheduler plugin (plugins/fixedip) is the other glue: it uses core and store. The two kinds of glue
// do not import each other. imports_test.go enforces these rules.
package ipam
