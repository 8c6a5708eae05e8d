// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"sync/atomic"

	k8smetrics "k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"fixedip.io/fixedip/ipam/core/ledger"
)

// World is the state that the gauges are read from whenever metrics are served.
type World interface {
	// Size returns the size of the ledger.
	Size() ledger.Size
	// Synced reports for each informer whether it has seen every object that existed at the start.
	// Key: the plural name of the resource.
	Synced() map[string]bool
}

// world is the World of the last call of Register.
var world atomic.Pointer[World]

// registerGauges adds the gauges to the metrics that the scheduler serves.
func registerGauges() {
	gauge := func(name, help string, labels map[string]string, value func(World) int) {
		legacyregistry.RawMustRegister(k8smetrics.NewGaugeFunc(&k8smetrics.GaugeOpts{
			Namespace: namespace, Name: name, Help: help, ConstLabels: labels, StabilityLevel: k8smetrics.ALPHA,
		}, func() float64 { return float64(value(*world.Load())) }))
	}
	gauge("cache_nodes", "Nodes whose pool the scheduler knows.", nil, func(w World) int { return w.Size().Nodes })
	gauge("cache_entries", "Pool entries, of all nodes, that name a pod as their owner.", nil, func(w World) int { return w.Size().Entries })
	gauge("claims_in_flight", "Pods whose address is chosen and that are not bound yet, including pods that wait at Permit.", nil, func(w World) int { return w.Size().Claims })
	for _, resource := range []string{"ciliumnodes", "fixedips"} {
		gauge("informer_synced", "1 if the informer has seen every object of the resource that existed at the start, else 0. The scheduler is not ready before.", map[string]string{"resource": resource}, func(w World) int {
			if w.Synced()[resource] {
				return 1
			}
			return 0
		})
	}
}
