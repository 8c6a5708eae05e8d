// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package inuse answers one question: is an address provably free of other pods?
//
// A pod that is gone from the API may still run: it was deleted by force, or its node does not answer. An agent
// reports what it has assigned some seconds later, and one that has not seen an entry may assign its address to
// another pod. Judge knows what proves the contrary: the kubelet's last word, the report of the agent, or time.
//
// The binder asks through an interface of its own. When the controller publishes the answer (principle 2 of
// docs/design), this package is deleted as a whole.
package inuse
