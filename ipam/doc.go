// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package ipam is the root of the packages that assign, record and release addresses. It has no code of its own. Each part
// may import only the parts above it:
//
//	api         API types
//	core        decisions, as pure functions: no client, clock, goroutine or context. Kubernetes objects
//	            are values
//	store       reading and writing API objects. Only ciliumpool knows how a CiliumNode encodes a pool
//	controller  controllers, on controller-runtime: when a decision is made and performed
//
// The scheduler plugin (plugins/fixedip) uses core and store too. The plugin and controller do not import each other.
// imports_test.go enforces these rules.
package ipam
