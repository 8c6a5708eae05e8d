// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Command dashboard draws the Grafana dashboard as an SVG from metrics that make dashboard has recorded. It evaluates the
// queries of the panels with the query engine of Prometheus, so the picture shows a query for a metric that does not exist as
// a panel without data.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/tsdb"
)

const (
	// rateInterval replaces $__rate_interval. It is long enough for four scrapes.
	rateInterval = "30s"
	// steps is the number of steps from the first to the last point of a line.
	steps = 200
)

// panel is a panel of the dashboard.
type panel struct {
	Type    string `json:"type"`
	Title   string `json:"title"`
	Targets []struct {
		Expr         string `json:"expr"`
		LegendFormat string `json:"legendFormat"`
	} `json:"targets"`
	FieldConfig struct {
		Defaults struct {
			Unit string `json:"unit"`
		} `json:"defaults"`
	} `json:"fieldConfig"`
	GridPos struct{ X, Y, W, H int } `json:"gridPos"`
}

// line is one series of a panel.
type line struct {
	name   string
	points []promql.FPoint
}

func main() {
	scrapes := flag.String("scrapes", "", "folder of the recorded metrics")
	dashboard := flag.String("dashboard", "manifests/prometheus/dashboard.json", "file of the dashboard, in JSON")
	out := flag.String("out", "docs/reference/dashboard.svg", "file to which the SVG is written")
	flag.Parse()
	if err := run(*scrapes, *dashboard, *out); err != nil {
		fmt.Fprintln(os.Stderr, "dashboard:", err)
		os.Exit(1)
	}
}

func run(scrapes, dashboard, out string) error {
	text, err := os.ReadFile(dashboard)
	if err != nil {
		return err
	}
	var d struct {
		Panels []panel `json:"panels"`
	}
	if err := json.Unmarshal(text, &d); err != nil {
		return fmt.Errorf("parse %s: %w", dashboard, err)
	}
	dir, err := os.MkdirTemp("", "fixedip-dashboard-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	db, err := tsdb.Open(dir, nil, nil, tsdb.DefaultOptions(), nil)
	if err != nil {
		return fmt.Errorf("open a time series database: %w", err)
	}
	defer db.Close()
	first, last, err := load(db, scrapes)
	if err != nil {
		return err
	}
	e := evaluator{db: db, first: first, last: last, engine: promql.NewEngine(promql.EngineOpts{MaxSamples: 10_000_000, Timeout: time.Minute})}
	picture, err := draw(d.Panels, e)
	if err != nil {
		return err
	}
	return os.WriteFile(out, []byte(picture), 0o644)
}

// load adds the samples of all files in the folder to db. The name of a file is a time in milliseconds and a program.
// load returns the times of the first and the last file.
func load(db *tsdb.DB, folder string) (first, last time.Time, err error) {
	files, err := filepath.Glob(filepath.Join(folder, "*-*.txt"))
	if err != nil {
		return first, last, err
	}
	if len(files) == 0 {
		return first, last, fmt.Errorf("folder %q has no recorded metrics", folder)
	}
	// All names begin with numbers of the same length.
	slices.Sort(files)
	for _, file := range files {
		stamp, program, _ := strings.Cut(strings.TrimSuffix(filepath.Base(file), ".txt"), "-")
		ms, err := strconv.ParseInt(stamp, 10, 64)
		if err != nil {
			return first, last, fmt.Errorf("file %s: its name does not begin with a time: %w", file, err)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return first, last, err
		}
		if err := appendSamples(db, text, program, ms); err != nil {
			return first, last, fmt.Errorf("file %s: %w", file, err)
		}
		if last = time.UnixMilli(ms); first.IsZero() {
			first = last
		}
	}
	return first, last, nil
}

// appendSamples adds the metrics of one scrape to db, with the label instance, as Prometheus does.
func appendSamples(db *tsdb.DB, text []byte, instance string, ms int64) error {
	p, err := textparse.New(text, "text/plain", nil, textparse.ParserOptions{})
	if err != nil {
		return err
	}
	app := db.Appender(context.Background())
	for {
		entry, err := p.Next()
		if errors.Is(err, io.EOF) {
			return app.Commit()
		}
		if err != nil {
			return errors.Join(err, app.Rollback())
		}
		if entry != textparse.EntrySeries {
			continue
		}
		_, _, value := p.Series()
		var of labels.Labels
		p.Labels(&of)
		if _, err := app.Append(0, labels.NewBuilder(of).Set("instance", instance).Labels(), ms, value); err != nil {
			return errors.Join(err, app.Rollback())
		}
	}
}

// evaluator evaluates queries over the recorded time.
type evaluator struct {
	db          *tsdb.DB
	engine      *promql.Engine
	first, last time.Time
}

// lines returns the series of all queries of a panel.
func (e evaluator) lines(p panel) (all []line, err error) {
	for _, t := range p.Targets {
		expr := strings.ReplaceAll(t.Expr, "$__rate_interval", rateInterval)
		query, err := e.engine.NewRangeQuery(context.Background(), e.db, nil, expr, e.first, e.last, e.last.Sub(e.first)/steps)
		if err != nil {
			return nil, fmt.Errorf("panel %q: query %s: %w", p.Title, expr, err)
		}
		result := query.Exec(context.Background())
		matrix, err := result.Matrix()
		if err != nil {
			return nil, fmt.Errorf("panel %q: query %s: %w", p.Title, expr, err)
		}
		for _, s := range matrix {
			name := t.LegendFormat
			s.Metric.Range(func(l labels.Label) { name = strings.ReplaceAll(name, "{{"+l.Name+"}}", l.Value) })
			var points []promql.FPoint
			for _, f := range s.Floats {
				if !math.IsNaN(f.F) && !math.IsInf(f.F, 0) {
					points = append(points, f)
				}
			}
			all = append(all, line{name, points})
		}
		query.Close()
	}
	return all, nil
}
