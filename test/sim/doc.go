// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package sim tests the whole product in a model of a cluster: faults happen in any order, and every write is checked
// against the invariants of the design.
//
// These parts are real: the controller from its setup to its last reconcile (ipam/controller), with controller-runtime's
// builders, sources, handlers and workers; the scheduler plugin (plugins/fixedip); all of ipam/core and ipam/store,
// including the Writer with its goroutines; and client-go's clients, which send HTTP requests and retry them.
//
// These parts are modelled: etcd and the API server (versions, generations, preconditions, JSON patches with their tests,
// finalizers, graceful deletion, the rules of our CRD); the caches, each of which processes one write at a time, so that
// they lag, lose their watch, list again, list old versions, and differ between kinds and processes; the queues of the
// controllers, from which the model takes requests in any order; the scheduling queue and cycle around the plugin; leader
// election; kubelets; agents, which allocate addresses like Cilium's allocator (pkg/ipam/crd.go); the controllers of
// StatefulSets and nodes and the garbage collectors; and users.
//
// All goroutines of the product run in a testing/synctest bubble. The model waits until none of them can continue by itself:
// each then waits for the answer to a request to the API server, or for a timer. The model chooses what happens next: a
// request is carried out, or fails before, after or instead of that; a cache processes a write; a request of a queue is
// handed out; time passes; a process is killed at any instruction; a user does something. A run is a list of such choices.
// The same list has the same history, and a shorter list that still fails has a shorter history.
//
// Each run draws a setup (setup_test.go): a ReplicaSet whose pods take over slots, strict nodes, dual stack, and the
// adoption of pods by a selector. Watches deliver writes inside a scheduling cycle too (cycle_test.go).
//
// In one run of three, agents make CiliumEndpoints, take over those of former pods, refuse others and leave some behind, as
// Cilium does before or from v1.19 on, and the keeper of CiliumEndpoints runs (endpoints_test.go, endpoint_checks_test.go).
//
// The model leaves out the ReplicaSets of a Deployment, pods with a stable name that another scheduler places, and volumes.
//
// At the end of a run all faults end, and the world has to come to rest: every pod runs with the addresses reserved for it,
// nothing is left of deleted objects, and the product writes nothing.
//
//	make sim STEPS=1000000 SEED=1   many runs; a failure prints its history
//	make sim-mutations              checks that deliberate bugs in the product are noticed
package sim
