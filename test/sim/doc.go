// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package sim tests the whole product in a model of a cluster: faults happen in any order, and every write is checked
// against the promises of docs/project/proof.md.
//
// These parts are real: the controller from its setup to its last reconcile (ipam/controller), with controller-runtime's
// builders, sources, handlers and workers; the scheduler plugin (plugins/fixedip); all of ipam/core and ipam/store,
// including the Writer with its goroutines; and client-go's clients, which send HTTP requests and retry them.
//
// These parts are modelled: etcd and the API server (versions, generations, preconditions, JSON patches with their
// tests, finalizers, graceful deletion, some rules of the FixedIP CRD); the caches, each of which processes one write
// at a time, so that they lag, lose their watch, list again, list old versions, and differ between kinds and processes;
// the event handlers of the caches, which may be called later than other handlers of the same event (informer_test.go);
// the queues of the controllers, from which the model takes requests in any order; the scheduling queue and cycle
// around the plugin; leader election; kubelets; agents, which allocate addresses like Cilium's allocator
// (pkg/ipam/crd.go); the controllers of StatefulSets and nodes and the garbage collectors; and users.
//
// All goroutines of the product run in a testing/synctest bubble. The model waits until every goroutine is blocked:
// each of them waits for the answer to a request to the API server, for an item of a queue, or for a timer. Then the
// model chooses the next event: a request is executed, is refused, or loses its connection before or after the
// execution; a cache processes a write; a queue hands out an item; time passes; a process is killed, whatever its goroutines
// wait for; a user acts. A run is a list of such choices. The same list has the same history. The list of a failing run is
// shortened as long as the shorter list also fails.
//
// Each run chooses at random which of these its setup has (setup_test.go): a ReplicaSet whose pods take over slots,
// strict nodes, dual stack, and the adoption of pods by a selector. Watches deliver writes inside a scheduling cycle
// too (cycle_test.go).
//
// In one out of three runs, agents create CiliumEndpoints, take over or refuse those of former pods, and leave some behind,
// and the controller's keeper of CiliumEndpoints runs (endpoints_test.go, endpoint_checks_test.go). In half of these runs,
// agents create a deleted CiliumEndpoint again, as Cilium v1.18.6 and later versions do.
//
// In one out of four runs, nodes are in two zones, and each pod of a StatefulSet has a volume that only nodes of one zone
// can mount (volumes_test.go).
//
// The model leaves out Deployments: no controller changes the ReplicaSet of the model. Pods that another scheduler
// places are bare pods in the model, and never pods of a StatefulSet.
//
// At the end of a run all faults end, and the world has to come to rest: every pod runs with the addresses reserved for it, or
// waits for an action of a user or for an address on a full node; nothing is left of deleted objects; and the product writes
// nothing.
//
//	make sim STEPS=1000000 SEED=1   many runs; a failure prints its history
//	make sim-mutations              puts bugs into the product, and checks that the model detects each
package sim
