// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package ipam is the root of the packages that assign, record and release addresses. It has no code of its own. Each part
// may import only itself and the parts above it:
//
//	api         API types
//	core        decisions, as functions that use no client, clock, goroutine or context. The caller passes
//	            the Kubernetes objects that a decision needs
//	store       reading and writing API objects. Only ciliumpool knows how a CiliumNode encodes a pool
//	controller  controllers, built on controller-runtime: they call core and perform its decisions
//
// Package scheme, which registers the API types, imports only api. Package version contains the version of fixedip for the
// metrics, the plugin and the programs. The scheduler plugin (plugins/fixedip) imports all parts except controller, which
// does not import the plugin. imports_test.go enforces the rules about imports.
package ipam
