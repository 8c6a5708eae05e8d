// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var barrierDuration = prometheus.NewHistogram(prometheus.HistogramOpts{
	Namespace: namespace,
	Name:      "agent_barrier_duration_seconds",
	Help:      "Time from the first question about a node to the answer of its Cilium agent.",
	Buckets:   []float64{0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512},
})

// barrierNodes counts the nodes with questions, and those of them whose agents are overdue.
var barrierNodes atomic.Pointer[func() (pending, overdue int)]

// Barriers sets the function that counts the nodes whose agents have not answered yet, and those whose agents are
// overdue. A later function replaces an earlier one.
func Barriers(count func() (pending, overdue int)) { barrierNodes.Store(&count) }

// BarrierAnswered counts an answer.
func BarrierAnswered(after time.Duration) { barrierDuration.Observe(after.Seconds()) }

func barrierCollectors() []prometheus.Collector {
	gauge := func(name, help string, value func(pending, overdue int) int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, func() float64 {
			count := barrierNodes.Load()
			if count == nil {
				return 0
			}
			return float64(value((*count)()))
		})
	}
	return []prometheus.Collector{
		barrierDuration,
		gauge("agent_barriers_pending", "Nodes whose Cilium agents have been asked, or are about to be, and have not answered.", func(pending, _ int) int { return pending }),
		gauge("agent_barriers_overdue", "Nodes whose Cilium agents have not answered for more than two minutes. Addresses of these nodes are not released or taken over.", func(_, overdue int) int { return overdue }),
	}
}
