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
				t.Errorf("%s (-want +got): %s", name, diff)
			}
		}
	}
}

func TestLimits(t *testing.T) {
	const runs = "  runs: [{commit: a, median: 0.8}, {commit: b, median: 1.0}, {commit: c, median: 0.9}]\n"
	for _, c := range []struct {
		name, file string
		report     *report
		// wantErr is part of the error; empty if the report is within the limits.
		wantErr string
	}{
		{"85 % of the median of the runs", "- ratio: B/A\n  nodes: 500\n" + runs, rounds([2]float64{100, 77}), ""},
		{"less than 85 % of the median of the runs", "- ratio: B/A\n  nodes: 500\n" + runs, rounds([2]float64{100, 76}), "B/A is 0.76 (0.76-0.76), want at least 0.77"},
		{"a limit of its own", "- ratio: B/A\n  nodes: 500\n  atLeast: 0.98\n" + runs, rounds([2]float64{100, 97}), "want at least 0.98"},
		{"a difference within its limit", "- ratio: B-A RSS, MiB\n  nodes: 500\n  atMost: 0\n  runs: []\n", rounds([2]float64{100, 90}), ""},
		{"a difference above its limit", "- ratio: B-A RSS, MiB\n  nodes: 500\n  atMost: -1\n  runs: []\n", rounds([2]float64{100, 90}), "want at most -1.00"},
		{"a difference without atMost", "- ratio: B-A RSS, MiB\n  nodes: 500\n" + runs, rounds([2]float64{100, 90}), "needs atMost"},
		{"a ratio with atMost", "- ratio: B/A\n  nodes: 500\n  atMost: 2\n" + runs, rounds([2]float64{100, 90}), "needs atLeast or runs"},
		{"another size", "- ratio: B/A\n  nodes: 5000\n" + runs, rounds([2]float64{100, 100}), "there are no limits for 500-nodes"},
		{"another load", "- ratio: B/A\n  nodes: 500\n  reports: true\n" + runs, rounds([2]float64{100, 100}), "there are no limits for 500-nodes"},
		{"an arm that did not run", "- ratio: D/A\n  nodes: 500\n" + runs, rounds([2]float64{100, 100}), "run all arms of one of D/A (arms A,D)"},
		{"an unknown ratio", "- ratio: X/A\n  nodes: 500\n" + runs, rounds([2]float64{100, 100}), `there is no ratio "X/A"`},
		{"no runs", "- ratio: B/A\n  nodes: 500\n  runs: []\n", rounds([2]float64{100, 100}), "has neither atLeast nor runs"},
		{"an unknown field", "- ratio: B/A\n  node: 500\n" + runs, rounds([2]float64{100, 100}), "unknown field"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "limits.yaml")
			if err := os.WriteFile(path, []byte("limits:\n"+c.file), 0o600); err != nil {
				t.Fatal(err)
			}
			limits, err := readLimits(path)
			if err == nil {
				err = c.report.check(limits)
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

// TestLimitsOfTheRepository checks that the limits that make bench-check uses can be read.
func TestLimitsOfTheRepository(t *testing.T) {
	if _, err := readLimits("../../perf/limits.yaml"); err != nil {
		t.Error(err)
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
