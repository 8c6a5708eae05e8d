// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"sync/atomic"

	k8smetrics "k8s.io/component-base/metrics"

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

var (
	ledgerNodes = k8smetrics.NewDesc("fixedip_cache_nodes",
		"Nodes whose pool the scheduler knows.", nil, nil, k8smetrics.ALPHA, "")
	ledgerEntries = k8smetrics.NewDesc("fixedip_cache_entries",
		"Pool entries, of all nodes, that name a pod as their owner.", nil, nil, k8smetrics.ALPHA, "")
	claimsInFlight = k8smetrics.NewDesc("fixedip_claims_in_flight",
		"Pods whose address is chosen and that are not bound yet, including pods that wait at Permit.", nil, nil, k8smetrics.ALPHA, "")
	watchSynced = k8smetrics.NewDesc("fixedip_informer_synced",
		"1 if the informer has seen every object of the resource that existed at the start, else 0. The scheduler is not ready before.", []string{"resource"}, nil, k8smetrics.ALPHA, "")
)

// worldCollector collects the gauges.
type worldCollector struct {
	k8smetrics.BaseStableCollector
	world atomic.Pointer[World]
}

var gauges = &worldCollector{}

// DescribeWithStability sends the descriptions of all gauges.
func (c *worldCollector) DescribeWithStability(ch chan<- *k8smetrics.Desc) {
	for _, d := range []*k8smetrics.Desc{ledgerNodes, ledgerEntries, claimsInFlight, watchSynced} {
		ch <- d
	}
}

// CollectWithStability sends the values of all gauges.
func (c *worldCollector) CollectWithStability(ch chan<- k8smetrics.Metric) {
	world := c.world.Load()
	if world == nil {
		return
	}
	gauge := func(d *k8smetrics.Desc, value int, labels ...string) {
		ch <- k8smetrics.NewLazyConstMetric(d, k8smetrics.GaugeValue, float64(value), labels...)
	}
	size := (*world).Size()
	gauge(ledgerNodes, size.Nodes)
	gauge(ledgerEntries, size.Entries)
	gauge(claimsInFlight, size.Claims)
	for resource, synced := range (*world).Synced() {
		if synced {
			gauge(watchSynced, 1, resource)
		} else {
			gauge(watchSynced, 0, resource)
		}
	}
}
