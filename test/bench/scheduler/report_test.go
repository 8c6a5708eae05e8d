// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/test/bench/measure"
	"fixedip.io/fixedip/test/bench/world"
)

// rounds returns a report with one round for each pair of rates: that of arm A and that of arm B.
func rounds(rates ...[2]float64) *report {
	r := &report{Size: world.Size{Nodes: 500}, Rounds: len(rates)}
	for i, rate := range rates {
		r.Results = append(r.Results, result{Arm: "A", Round: i, PerSecond: rate[0]}, result{Arm: "B", Round: i, PerSecond: rate[1]})
	}
	return r
}

func TestRatioOfEachRound(t *testing.T) {
	r := rounds([2]float64{100, 90}, [2]float64{200, 100}, [2]float64{50, 48})
	// Arm D has run in no round.
	for name, want := range map[string][]float64{"B/A": {0.9, 0.5, 0.96}, "D/A": nil} {
		for _, of := range ratios {
			if of.name != name {
				continue
			}
			if diff := cmp.Diff(want, r.values(of)); diff != "" {
				t.Errorf("ratio %s in each round (-want +got): %s", name, diff)
			}
		}
	}
}

// cpuTime returns a report with one round in which arm A takes 100 CPU seconds for 1,000 pods, and arm B the given number.
func cpuTime(b float64) *report {
	return &report{Size: world.Size{Nodes: 500}, Rounds: 1, Results: []result{{Arm: "A", CPU: 100}, {Arm: "B", CPU: b}}}
}

func TestLimits(t *testing.T) {
	const runs = "  runs: [{commit: a, rounds: 5, median: 0.8}, {commit: b, rounds: 5, median: 1.0}, {commit: c, rounds: 5, median: 0.9}]\n"
	memory := &report{Size: world.Size{Nodes: 500}, Rounds: 1, Results: []result{
		{Arm: "A", Resident: 100 * measure.Mebibyte}, {Arm: "B", Resident: 160 * measure.Mebibyte},
	}}
	for _, c := range []struct {
		name, file string
		report     *report
		// wantErr is part of the error; empty if the report is within the limits.
		wantErr string
	}{
		{"15 % worse than the median of the runs", "- ratio: B/A\n  nodes: 500\n" + runs, rounds([2]float64{100, 77}), ""},
		{"more than 15 % worse than the median of the runs", "- ratio: B/A\n  nodes: 500\n" + runs, rounds([2]float64{100, 76}), "B/A is 0.76 (0.76 to 0.76), want at least 0.77"},
		{"one bad round of three", "- ratio: B/A\n  nodes: 500\n" + runs, rounds([2]float64{100, 90}, [2]float64{100, 20}, [2]float64{100, 80}), ""},
		{"above the lowest value", "- ratio: B/A\n  nodes: 500\n  atLeast: 0.98\n", rounds([2]float64{100, 99}), ""},
		{"below the lowest value, no regression", "- ratio: B/A\n  nodes: 500\n  atLeast: 0.98\n" + runs, rounds([2]float64{100, 97}), "want at least 0.98"},
		{"a regression above the lowest value", "- ratio: B/A\n  nodes: 500\n  atLeast: 0.5\n" + runs, rounds([2]float64{100, 70}), "want at least 0.77"},
		{"a cost within its limit", "- cost: RSS B-A, MiB\n  nodes: 500\n  atMost: 60\n", memory, ""},
		{"a cost above its limit", "- cost: RSS B-A, MiB\n  nodes: 500\n  atMost: 59.5\n", memory, "RSS B-A, MiB is 60.00 (60.00 to 60.00), want at most 59.50"},
		{"a cost above the limit 0", "- cost: RSS B-A, MiB\n  nodes: 500\n  atMost: 0\n", memory, "want at most 0.00"},
		{"another size", "- ratio: B/A\n  nodes: 5000\n" + runs, rounds([2]float64{100, 1}), "no figure was compared"},
		{"another load", "- ratio: B/A\n  nodes: 500\n  reports: true\n" + runs, rounds([2]float64{100, 1}), "no figure was compared"},
		{"an arm that did not run", "- ratio: D/A\n  nodes: 500\n" + runs, rounds([2]float64{100, 100}), "run all arms of one of D/A (arms A,D)"},
		{"an unknown ratio", "- ratio: X/A\n  nodes: 500\n" + runs, memory, `there is no ratio "X/A"`},
		{"an unknown cost", "- cost: X\n  nodes: 500\n  atMost: 1\n", memory, `there is no cost "X"`},
		{"a ratio and a cost", "- ratio: B/A\n  cost: requests C-F\n  nodes: 500\n  atMost: 1\n", memory, "needs either ratio or cost"},
		{"a ratio with a highest value", "- ratio: B/A\n  nodes: 500\n  atMost: 1\n" + runs, memory, "which only costs have"},
		{"15 % more CPU time than the median of the runs", "- cost: CPU B/A\n  nodes: 500\n" + runs, cpuTime(103), ""},
		{"more than 15 % more CPU time than the median of the runs", "- cost: CPU B/A\n  nodes: 500\n" + runs, cpuTime(104), "CPU B/A is 1.04 (1.04 to 1.04), want at most 1.03"},
		{"a highest ratio of CPU times instead of the median of the runs", "- cost: CPU B/A\n  nodes: 500\n  atMost: 1.1\n" + runs, cpuTime(110), ""},
		{"a ratio of CPU times without runs", "- cost: CPU B/A\n  nodes: 500\n", memory, "needs atMost, or runs"},
		{"a cost with a lowest value", "- cost: CPU B/A\n  nodes: 500\n  atLeast: 1\n" + runs, memory, "has atLeast, which only ratios of throughput have"},
		{"a difference without a highest value", "- cost: requests C-F\n  nodes: 500\n" + runs, memory, "needs atMost, or runs if it is a ratio"},
		{"no runs", "- ratio: B/A\n  nodes: 500\n  runs: []\n", memory, "has neither atLeast nor runs"},
		{"an unknown field", "- ratio: B/A\n  node: 500\n" + runs, memory, "unknown field"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "limits.yaml")
			if err := os.WriteFile(path, []byte("limits:\n"+c.file), 0o600); err != nil {
				t.Fatal(err)
			}
			limits, err := readLimits(path)
			if err == nil {
				_, err = c.report.check(c.report.applicable(limits))
			}
			switch {
			case c.wantErr == "" && err != nil:
				t.Errorf("got error %v, want none", err)
			case c.wantErr != "" && (err == nil || !strings.Contains(err.Error(), c.wantErr)):
				t.Errorf("got error %v, want it to contain %q", err, c.wantErr)
			}
		})
	}
}

// TestMissedLimits checks that check returns only the limits that are missed, and armsOf only the arms that these limits
// need. Only these arms run again.
func TestMissedLimits(t *testing.T) {
	r := rounds([2]float64{100, 50})
	r.Results = append(r.Results, result{Arm: "C", PerSecond: 200, Requests: map[string]float64{"PATCH ciliumnodes": 0.5, "POST pods/binding": 1}})
	none, one := 0.0, 1.0
	missed, err := r.check([]limit{
		{Ratio: "B/A", AtLeast: 0.9}, {Ratio: "C/A", AtLeast: 1.8}, {Cost: "CiliumNode writes C", AtMost: &none}, {Cost: "requests C-F", AtMost: &one},
	})
	if want := []limit{{Ratio: "B/A", AtLeast: 0.9}, {Cost: "CiliumNode writes C", AtMost: &none}}; err == nil || !cmp.Equal(want, missed) {
		t.Errorf("got error %v, want one; missed limits (-want +got): %s", err, cmp.Diff(want, missed))
	}
	if diff := cmp.Diff([]string{"A", "B", "C"}, armsOf(missed)); diff != "" {
		t.Errorf("arms (-want +got): %s", diff)
	}
}

// TestLimitsOfTheRepository checks that the limits that make bench-check uses can be read, and that there are limits for
// clusters of 500 and of 5,000 nodes.
func TestLimitsOfTheRepository(t *testing.T) {
	limits, err := readLimits("../../perf/limits.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, nodes := range []int{500, 5000} {
		if r := (&report{Size: world.Size{Nodes: nodes}}); len(r.applicable(limits)) == 0 {
			t.Errorf("there are no limits for %s", r.name())
		}
	}
}

func TestRequestsPerPod(t *testing.T) {
	requests := func(counts map[[3]string]float64) measure.Metrics {
		family := &dto.MetricFamily{}
		for key, n := range counts {
			m := &dto.Metric{Counter: &dto.Counter{Value: ptr.To(n)}}
			for i, label := range []string{"verb", "resource", "subresource"} {
				m.Label = append(m.Label, &dto.LabelPair{Name: ptr.To(label), Value: ptr.To(key[i])})
			}
			family.Metric = append(family.Metric, m)
		}
		return measure.Metrics{"apiserver_request_total": family}
	}
	before := requests(map[[3]string]float64{{"POST", "pods", "binding"}: 100, {"LIST", "pods", ""}: 1, {"PATCH", "ciliumnodes", "status"}: 50})
	after := requests(map[[3]string]float64{
		{"POST", "pods", "binding"}: 200, {"LIST", "pods", ""}: 9, {"WATCH", "pods", ""}: 3, {"PATCH", "ciliumnodes", ""}: 25, {"PATCH", "ciliumnodes", "status"}: 80, {"GET", "", ""}: 40,
	})
	want := map[string]float64{"POST pods/binding": 1, "PATCH ciliumnodes": 0.25}
	if diff := cmp.Diff(want, requestsPerPod(before, after, 100, 30)); diff != "" {
		t.Errorf("requests (-want +got): %s", diff)
	}
}
