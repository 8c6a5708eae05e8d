// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"

	"fixedip.io/fixedip/test/bench/measure"
)

const (
	chartWidth  = 24 * vg.Centimeter
	chartHeight = 12 * vg.Centimeter
	barWidth    = 9
)

// readReports reads all reports in a folder, in the order of their file names.
func readReports(dir string) ([]*report, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*-nodes*.json"))
	if err != nil {
		return nil, err
	}
	var reports []*report
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read a report: %w", err)
		}
		r := &report{}
		if err := json.Unmarshal(data, r); err != nil {
			return nil, fmt.Errorf("read the report %s: %w", path, err)
		}
		reports = append(reports, r)
	}
	return reports, nil
}

// drawThroughput draws the median throughput of each arm in each report.
func drawThroughput(dir string, reports []*report) error {
	p := plot.New()
	p.Title.Text = "Pods bound per second (P: patches per second)"
	p.Y.Min = 0
	p.Legend.Top = true
	names := make([]string, len(allArms))
	for i, a := range allArms {
		names[i] = a.name
	}
	for i, r := range reports {
		values := make(plotter.Values, len(allArms))
		for j, a := range allArms {
			values[j] = median(r.of(a.name, perSecond))
		}
		bars, err := plotter.NewBarChart(values, vg.Points(barWidth))
		if err != nil {
			return fmt.Errorf("draw the throughput of %s: %w", r.name(), err)
		}
		bars.Color, bars.LineStyle.Width = plotutil.Color(i), 0
		bars.Offset = vg.Points(barWidth * (float64(i) - float64(len(reports)-1)/2))
		p.Add(bars)
		p.Legend.Add(r.name(), bars)
	}
	p.NominalX(names...)
	return save(p, filepath.Join(dir, "throughput.svg"))
}

// drawLatencies draws the distributions of the latencies of a report: of attempts for each arm with a scheduler, and of
// claims for each arm in which FixedIP claims addresses.
func drawLatencies(dir string, r *report) error {
	p := plot.New()
	p.Title.Text = "Share of scheduling attempts and claims that took at most this long: " + r.name()
	p.X.Label.Text, p.Y.Label.Text = "milliseconds", "share"
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Y.Min, p.Y.Max = 0, 1
	color := 0
	add := func(name string, latency func(result) measure.Latency) error {
		points := distribution(r, latency)
		if len(points) == 0 {
			return nil
		}
		line, err := plotter.NewLine(points)
		if err != nil {
			return fmt.Errorf("draw the latency of %s: %w", name, err)
		}
		line.Color = plotutil.Color(color)
		color++
		p.Add(line)
		p.Legend.Add(name, line)
		return nil
	}
	for _, a := range allArms {
		of := func(latency func(result) measure.Latency) func(result) measure.Latency {
			return func(x result) measure.Latency {
				if x.Arm != a.name {
					return measure.Latency{}
				}
				return latency(x)
			}
		}
		if err := add("attempts, "+a.name, of(func(x result) measure.Latency { return x.Attempt })); err != nil {
			return err
		}
		if err := add("claims, "+a.name, of(func(x result) measure.Latency { return x.Claim })); err != nil {
			return err
		}
	}
	return save(p, filepath.Join(dir, "latency-"+r.name()+".svg"))
}

// distribution returns a point for each bucket: its limit in milliseconds, and the share of the observations of all rounds
// that do not exceed the limit.
func distribution(r *report, latency func(result) measure.Latency) plotter.XYs {
	var points plotter.XYs
	total := 0.0
	for _, x := range r.Results {
		l := latency(x)
		total += float64(l.Count)
		for i, b := range l.Buckets {
			if i == len(points) {
				points = append(points, plotter.XY{X: b.UpTo * 1000})
			}
			points[i].Y += float64(b.Count)
		}
	}
	for i := range points {
		points[i].Y /= total
	}
	return points
}

func save(p *plot.Plot, path string) error {
	if err := p.Save(chartWidth, chartHeight, path); err != nil {
		return fmt.Errorf("write the chart %s: %w", path, err)
	}
	return nil
}
