// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"fixedip.io/fixedip/test/bench/measure"
	"fixedip.io/fixedip/test/bench/world"
)

// result contains the figures of one run of an arm.
type result struct {
	Arm   string `json:"arm"`
	Round int    `json:"round"`
	Pods  int    `json:"pods"`
	// PerSecond is the number of binds per second between the first and the last bind; for arm P, the number of
	// patches per second.
	PerSecond float64 `json:"perSecond"`
	// FirstBind is the time from the start of the scheduler to its first bind, in seconds.
	FirstBind float64 `json:"firstBindSeconds"`
	// CPU is the CPU time of the scheduler from the first to the last bind, in seconds per 1,000 pods, and StartCPU that
	// before the first bind, in seconds.
	CPU      float64 `json:"cpuSecondsPer1000Pods"`
	StartCPU float64 `json:"startCPUSeconds"`
	// Resident is the memory of the scheduler after the last bind, and Peak its maximum, in bytes.
	Resident int64 `json:"residentBytes"`
	Peak     int64 `json:"peakBytes"`
	// HeapGoal is the size to which the heap grows until the next garbage collection, in bytes, with all pods bound. Unlike
	// Resident, which lies anywhere between the live heap and this size, it does not depend on the time of the measurement.
	HeapGoal int64 `json:"heapGoalBytes"`
	// Attempt is the time from the moment at which the scheduler takes a pod from its queue until the pod is bound, and
	// Claim the part of that time that the claim takes.
	Attempt measure.Latency `json:"attempt"`
	Claim   measure.Latency `json:"claim"`
	// Refused is the number of attempts, from the start of the scheduler, that found no node for a pod.
	Refused int `json:"refusedAttempts"`
	// Requests contains the requests to the API server per pod, without lists and watches. Key: verb and resource.
	Requests map[string]float64 `json:"requestsPerPod"`
	// WatchBytes is the size of all watch events of CiliumNodes after the first bind, per pod and watch. Each client that
	// watches CiliumNodes gets these bytes: schedulers with FixedIP, and the reporter.
	WatchBytes float64 `json:"watchBytesPerPod"`
}

// report contains all figures of a run.
type report struct {
	Commit  string     `json:"commit"`
	Date    time.Time  `json:"date"`
	Cores   int        `json:"cores"`
	Go      string     `json:"go"`
	QPS     int        `json:"qps"`
	Size    world.Size `json:"size"`
	Reports bool       `json:"reports"`
	Rounds  int        `json:"rounds"`
	Results []result   `json:"results"`
}

func (b *bench) newReport() *report {
	return &report{Commit: b.commit, Date: time.Now().UTC(), Cores: runtime.NumCPU(), Go: runtime.Version(), QPS: b.qps, Size: b.size, Reports: b.reports, Rounds: b.rounds}
}

// watchBytes is the metric of the API server with the sizes of watch events.
const watchBytes = "apiserver_watch_events_sizes"

var ofCiliumNodes = map[string]string{"group": "cilium.io", "resource": "ciliumnodes"}

// requestsPerPod returns the number of requests per pod between two readings of the metrics of the API server. It leaves
// out requests whose total for all pods is less than 0.5. reported is the number of status patches of CiliumNodes by the
// simulated agents in that time, which do not count. Key: see measure.RequestKey.
func requestsPerPod(before, after measure.Metrics, pods int, reported int64) map[string]float64 {
	found, former := after.Requests(), before.Requests()
	found[measure.RequestKey("PATCH", "ciliumnodes", "status")] -= float64(reported)
	for key := range found {
		found[key] = (found[key] - former[key]) / float64(pods)
	}
	maps.DeleteFunc(found, func(_ string, n float64) bool { return n < 1/float64(2*pods) })
	return found
}

// median returns the median; 0 if there are no values.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	switch {
	case n == 0:
		return 0
	case n%2 == 1:
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}

// of returns a figure of an arm in each round.
func (r *report) of(arm string, figure func(result) float64) []float64 {
	var values []float64
	for _, x := range r.Results {
		if x.Arm == arm {
			values = append(values, figure(x))
		}
	}
	return values
}

// perSecond returns the throughput of a result.
func perSecond(r result) float64 { return r.PerSecond }

// figure is a figure of one or more arms. It is computed for each round, because other load that lasts for a round
// affects all arms of that round.
type figure struct {
	name string
	// arms are the arms that the figure needs. of returns the value of a round from the results of these arms. Key: the arm.
	arms []string
	of   func(map[string]result) float64
	// relative is true for a cost that is a ratio.
	relative bool
}

// ratios are the throughputs of arms relative to other arms. More is better.
var ratios = []figure{
	{name: "B/A", arms: []string{"A", "B"}, of: func(r map[string]result) float64 { return r["B"].PerSecond / r["A"].PerSecond }},
	{name: "C/A", arms: []string{"A", "C"}, of: func(r map[string]result) float64 { return r["C"].PerSecond / r["A"].PerSecond }},
	{name: "C/F", arms: []string{"C", "F"}, of: func(r map[string]result) float64 { return r["C"].PerSecond / r["F"].PerSecond }},
	{name: "D/A", arms: []string{"A", "D"}, of: func(r map[string]result) float64 { return r["D"].PerSecond / r["A"].PerSecond }},
	{name: "D/S", arms: []string{"D", "S"}, of: func(r map[string]result) float64 { return r["D"].PerSecond / r["S"].PerSecond }},
	// floor is the rate of an imagined scheduler that, for each pod in turn, needs the time of arm A and then the time
	// of arm P for one patch.
	{name: "D/floor", arms: []string{"A", "D", "P"}, of: func(r map[string]result) float64 {
		return r["D"].PerSecond * (1/r["A"].PerSecond + 1/r["P"].PerSecond)
	}},
	{name: "E/A", arms: []string{"A", "E"}, of: func(r map[string]result) float64 { return r["E"].PerSecond / r["A"].PerSecond }},
}

// costs are figures of which less is better. Requests do not contain those of the controller, which does not run.
//
// A ratio of CPU times differs less from run to run than a ratio of throughputs: a scheduler whose binds the API server refuses
// waits a second without using CPU time.
var costs = []figure{
	cpuRatio("B", "A"), cpuRatio("C", "A"), cpuRatio("C", "F"), cpuRatio("D", "S"),
	{name: "RSS B-A, MiB", arms: []string{"A", "B"}, of: func(r map[string]result) float64 {
		return float64(r["B"].Resident-r["A"].Resident) / measure.Mebibyte
	}},
	{name: "heap goal B-A, MiB", arms: []string{"A", "B"}, of: func(r map[string]result) float64 {
		return float64(r["B"].HeapGoal-r["A"].HeapGoal) / measure.Mebibyte
	}},
	{name: "first bind C-F, s", arms: []string{"C", "F"}, of: func(r map[string]result) float64 { return r["C"].FirstBind - r["F"].FirstBind }},
	{name: "requests C-F", arms: []string{"C", "F"}, of: func(r map[string]result) float64 { return r["C"].requests() - r["F"].requests() }},
	{name: "requests D-A", arms: []string{"A", "D"}, of: func(r map[string]result) float64 { return r["D"].requests() - r["A"].requests() }},
	{name: "CiliumNode writes C", arms: []string{"C"}, of: func(r map[string]result) float64 { return r["C"].poolWrites() }},
	{name: "CiliumNode writes D", arms: []string{"D"}, of: func(r map[string]result) float64 { return r["D"].poolWrites() }},
	{name: "CiliumNode writes E", arms: []string{"E"}, of: func(r map[string]result) float64 { return r["E"].poolWrites() }},
}

// cpuRatio returns the ratio of the CPU times per pod of two arms.
func cpuRatio(of, to string) figure {
	return figure{name: "CPU " + of + "/" + to, arms: []string{of, to}, relative: true, of: func(r map[string]result) float64 { return r[of].CPU / r[to].CPU }}
}

// requests returns the number of all requests per pod.
func (r result) requests() float64 {
	sum := 0.0
	for _, n := range r.Requests {
		sum += n
	}
	return sum
}

// poolWrites returns the number of patches of CiliumNodes, without patches of their status, per pod.
func (r result) poolWrites() float64 {
	return r.Requests[measure.RequestKey("PATCH", "ciliumnodes", "")]
}

// values returns the value of a figure in each round that has the results of all arms of the figure.
func (r *report) values(of figure) []float64 {
	var values []float64
	for round := range r.Rounds {
		have := map[string]result{}
		for _, x := range r.Results {
			if x.Round == round && slices.Contains(of.arms, x.Arm) {
				have[x.Arm] = x
			}
		}
		if len(have) == len(of.arms) {
			values = append(values, of.of(have))
		}
	}
	return values
}

// print writes the medians as tables.
func (r *report) print(w io.Writer) {
	load := "no reports of agents"
	if r.Reports {
		load = fmt.Sprintf("%.0f reports of agents per second", float64(r.Size.Nodes)/reportPeriod.Seconds())
	}
	if r.Size.Searching > 0 {
		load += fmt.Sprintf(", %d pods waiting for slots", r.Size.Searching)
	}
	fmt.Fprintf(w, "\nCommit %s, %d cores, %s, QPS %d. %d nodes, %d running pods with and %d without a fixed address, %s. Medians of %d rounds; throughput with its spread.\n\n",
		cmp.Or(r.Commit, "unknown"), r.Cores, r.Go, r.QPS, r.Size.Nodes, r.Size.Fixed, r.Size.Ordinary, load, r.Rounds)
	fmt.Fprintf(w, "| Arm | per second | first bind, s | CPU s per 1,000 pods | RSS, MiB | heap goal, MiB | attempt p50, p99, ms | claim p50, p99, ms | watch bytes per pod |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, a := range allArms {
		rates := r.of(a.name, perSecond)
		if len(rates) == 0 {
			continue
		}
		m := func(figure func(result) float64) float64 { return median(r.of(a.name, figure)) }
		fmt.Fprintf(w, "| %s: %s | %.0f (%.0f-%.0f) | %.1f | %.2f | %.0f | %.0f | %.2f, %.2f | %.1f, %.1f | %.0f |\n", a.name, a.about, median(rates), slices.Min(rates), slices.Max(rates),
			m(func(x result) float64 { return x.FirstBind }), m(func(x result) float64 { return x.CPU }), m(func(x result) float64 { return float64(x.Resident) / measure.Mebibyte }), m(func(x result) float64 { return float64(x.HeapGoal) / measure.Mebibyte }),
			m(func(x result) float64 { return x.Attempt.P50 * 1000 }), m(func(x result) float64 { return x.Attempt.P99 * 1000 }),
			m(func(x result) float64 { return x.Claim.P50 * 1000 }), m(func(x result) float64 { return x.Claim.P99 * 1000 }), m(func(x result) float64 { return x.WatchBytes }))
	}
	fmt.Fprintf(w, "\n| Figure | median | spread |\n|---|---|---|\n")
	for _, of := range slices.Concat(ratios, costs) {
		if values := r.values(of); len(values) > 0 {
			fmt.Fprintf(w, "| %s | %.2f | %.2f-%.2f |\n", of.name, median(values), slices.Min(values), slices.Max(values))
		}
	}
	fmt.Fprintf(w, "\n| Requests per pod |")
	keys := map[string]bool{}
	var arms []string
	for _, a := range allArms {
		if len(r.of(a.name, perSecond)) == 0 {
			continue
		}
		arms = append(arms, a.name)
		for _, x := range r.Results {
			if x.Arm == a.name {
				for key := range x.Requests {
					keys[key] = true
				}
			}
		}
	}
	for _, a := range arms {
		fmt.Fprintf(w, " %s |", a)
	}
	fmt.Fprintln(w)
	for range len(arms) + 1 {
		fmt.Fprint(w, "|---")
	}
	fmt.Fprintln(w, "|")
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		fmt.Fprintf(w, "| %s |", key)
		for _, a := range arms {
			fmt.Fprintf(w, " %.3f |", median(r.of(a, func(x result) float64 { return x.Requests[key] })))
		}
		fmt.Fprintln(w)
	}
}

// write writes the report into a folder: the figures as JSON, and two charts as SVG. One chart shows the throughputs of all
// reports in the folder, the other the latencies of this report.
func (r *report) write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("create the folder of the report: %w", err)
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the report: %w", err)
	}
	path := filepath.Join(dir, r.name()+".json")
	if err := os.WriteFile(path, append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	reports, err := readReports(dir)
	if err != nil {
		return err
	}
	if err := drawThroughput(dir, reports); err != nil {
		return err
	}
	return drawLatencies(dir, r)
}

// name returns the name of the files of the report, which depends on the size and the load.
func (r *report) name() string {
	name := fmt.Sprintf("%d-nodes", r.Size.Nodes)
	if bound := r.Size.Fixed + r.Size.Ordinary; bound > 0 {
		name += fmt.Sprintf("-%d-pods", bound)
	}
	if r.Reports {
		name += "-reports"
	}
	if r.Size.Searching > 0 {
		name += fmt.Sprintf("-%d-searching", r.Size.Searching)
	}
	return name
}
