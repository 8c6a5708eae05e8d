// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package sim is a model of the whole: the product runs in a cluster in which everything that can go wrong does, in any
// order, and every write is checked against the invariants of the design.
//
// What is real: the controller from its set-up to its last reconcile (ipam/controller), with
// controller-runtime's builders, sources, handlers and workers; the scheduler plugin (plugins/fixedip);
// all of ipam/core and ipam/store, the Writer with its goroutines included; client-go's clients, which
// send HTTP requests and try again as they do.
//
// What is modelled: etcd and the API server (versions, generations, preconditions, JSON patches with their
// tests, finalizers, graceful deletion, the rules of our CRD); the caches, each of which takes in one
// write at a time, so that they lag, drop, list anew, list what is old, and are not in step across kinds and
// processes; the queues of the controllers, from which the model takes a request when it likes; the
// scheduling queue and cycle around the plugin; leader election; kubelets; agents, which do with addresses
// what Cilium's allocator does (pkg/ipam/crd.go); the controllers of StatefulSets, of nodes and of garbage;
// people.
//
// All goroutines of the product run in a testing/synctest bubble. The model waits until none of them can go
// on by itself. Each is then at a request to the API server, which waits in a line, or at a timer. The model
// chooses what happens next: a request is carried out, or fails before, after or instead of that; a cache
// takes in a write; a request of a queue is handed out; time passes; a process is killed wherever it is; a
// person does something. A run is a list of such choices, so that the same list gives the same history, and
// a shorter list that fails as well is a shorter history.
//
// Each run draws a setup (setup_test.go): a ReplicaSet whose pods take over slots, strict nodes, dual stack, and the
// adoption of pods by a selector. Watches deliver writes inside a scheduling cycle too (cycle_test.go).
//
// In one run of three agents make CiliumEndpoints, take over those of former pods, refuse others and leave some behind, as
// Cilium does before or from v1.19 on, and the keeper of CiliumEndpoints runs (endpoints_test.go, endpoint_checks_test.go).
//
// Not modelled: the ReplicaSets of a Deployment, pods with a stable name that another scheduler places, volumes.
//
// At the end of a run nothing goes wrong any more, and the world has to come to rest: every pod runs with the addresses
// reserved for it, nothing is left of deleted objects, and the product writes nothing.
//
//	make sim STEPS=1000000 SEED=1   many runs; a failure prints its history
//	make sim-mutations              bugs that are put into the product on purpose have to be noticed
package sim
