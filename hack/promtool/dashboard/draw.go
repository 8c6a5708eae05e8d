// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"html"
	"math"
	"strings"
	"time"

	"github.com/prometheus/prometheus/promql"
)

// The sizes of the picture in pixels. A dashboard is 24 columns wide.
const (
	column, rowHeight = 50, 32
	margin            = 10
	// legendLines is the number of lines of a legend. Names for which there is no room are left out.
	legendLines = 2
	// charWidth is the width of a character relative to the size of its font.
	charWidth = 0.6
)

var colors = []string{"#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf"}

// draw returns the panels as an SVG, in the layout of the dashboard. It leaves out tables.
func draw(panels []panel, e evaluator) (string, error) {
	var body strings.Builder
	height := 0
	for _, p := range panels {
		if p.Type == "table" {
			continue
		}
		x, y, w, h := margin+p.GridPos.X*column, margin+p.GridPos.Y*rowHeight, p.GridPos.W*column-margin, p.GridPos.H*rowHeight-margin
		if p.Type == "row" {
			text(&body, x, y+18, 15, "bold", "#222", p.Title)
			continue
		}
		height = max(height, y+h+margin)
		lines, err := e.lines(p)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&body, `<rect x="%d" y="%d" width="%d" height="%d" rx="3" fill="#fff" stroke="#d5d8dc"/>`+"\n", x, y, w, h)
		text(&body, x+8, y+17, min(12, int(float64(w-16)/charWidth/float64(len(p.Title)))), "bold", "#222", p.Title)
		if p.Type == "stat" {
			drawNumber(&body, x, y, w, h, lines, p.FieldConfig.Defaults.Unit)
		} else {
			drawLines(&body, x, y, w, h, lines, p.FieldConfig.Defaults.Unit, e.first, e.last)
		}
	}
	width := 24*column + margin
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif">`+"\n"+
		`<title>The Grafana dashboard of fixedip</title>`+"\n"+`<rect width="%d" height="%d" fill="#f4f5f6"/>`+"\n%s</svg>\n", width, height, width, height, body.String()), nil
}

func text(out *strings.Builder, x, y, size int, weight, color, s string) {
	fmt.Fprintf(out, `<text x="%d" y="%d" font-size="%d" font-weight="%s" fill="%s">%s</text>`+"\n", x, y, size, weight, color, html.EscapeString(s))
}

// drawNumber draws the last value of each series.
func drawNumber(out *strings.Builder, x, y, w, h int, lines []line, unit string) {
	var parts []string
	for _, l := range lines {
		if len(l.points) > 0 {
			parts = append(parts, format(l.points[len(l.points)-1].F, unit))
		}
	}
	if len(parts) == 0 {
		parts = []string{"no data"}
	}
	fmt.Fprintf(out, `<text x="%d" y="%d" font-size="26" fill="#2c7a3f" text-anchor="middle">%s</text>`+"\n", x+w/2, y+h/2+18, html.EscapeString(strings.Join(parts, " / ")))
}

// drawLines draws the series of a panel with its axes and a legend.
func drawLines(out *strings.Builder, x, y, w, h int, lines []line, unit string, first, last time.Time) {
	left, top, bottom := x+46, y+28, y+h-50
	right := x + w - 10
	highest := 0.0
	for _, l := range lines {
		for _, p := range l.points {
			highest = max(highest, p.F)
		}
	}
	highest = nice(highest)
	for i := range 3 {
		value := highest * float64(i) / 2
		at := bottom - (bottom-top)*i/2
		fmt.Fprintf(out, `<path d="M%d %dH%d" stroke="#e6e8ea"/>`+"\n", left, at, right)
		fmt.Fprintf(out, `<text x="%d" y="%d" font-size="10" fill="#666" text-anchor="end">%s</text>`+"\n", left-5, at+4, format(value, unit))
	}
	minutes := last.Sub(first).Minutes()
	for i := range 4 {
		at := left + (right-left)*i/3
		fmt.Fprintf(out, `<text x="%d" y="%d" font-size="10" fill="#666" text-anchor="middle">%.0f min</text>`+"\n", at-12*i/3, bottom+14, minutes*float64(i)/3)
	}
	if len(lines) == 0 {
		text(out, left+10, (top+bottom)/2, 12, "normal", "#999", "no data")
	}
	span := float64(last.Sub(first).Milliseconds())
	nameX, nameY := x+8, bottom+30
	for i, l := range lines {
		color := colors[i%len(colors)]
		if path := pathOf(l.points, func(p promql.FPoint) (float64, float64) {
			return float64(left) + float64(right-left)*float64(p.T-first.UnixMilli())/span, float64(bottom) - float64(bottom-top)*p.F/highest
		}); path != "" {
			fmt.Fprintf(out, `<path d="%s" fill="none" stroke="%s" stroke-width="1.4"/>`+"\n", path, color)
		}
		width := 11 + int(charWidth*10*float64(len(l.name)))
		if nameX > x+8 && nameX+width > right {
			nameX, nameY = x+8, nameY+14
		}
		if nameY < bottom+30+14*legendLines {
			fmt.Fprintf(out, `<rect x="%d" y="%d" width="8" height="3" fill="%s"/>`+"\n", nameX, nameY-5, color)
			text(out, nameX+11, nameY, 10, "normal", "#444", l.name)
			nameX += width + 9
		}
	}
}

// pathOf returns the path of an SVG through the points. It begins a new part if points are missing.
func pathOf(points []promql.FPoint, at func(promql.FPoint) (x, y float64)) string {
	var path strings.Builder
	for i, p := range points {
		step := "L"
		if i == 0 || i > 1 && p.T-points[i-1].T > 3*(points[i-1].T-points[i-2].T)/2 {
			step = "M"
		}
		x, y := at(p)
		fmt.Fprintf(&path, "%s%.1f %.1f", step, x, y)
	}
	return path.String()
}

// nice returns a round number that is at least v; 1 if v is not positive.
func nice(v float64) float64 {
	if v <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 5, 10} {
		if m*power >= v {
			return m * power
		}
	}
	return 10 * power
}

// format returns a value with its unit, as Grafana shows it.
func format(v float64, unit string) string {
	switch {
	case unit == "percentunit":
		return fmt.Sprintf("%.1f %%", 100*v)
	case unit == "s" && v > 0 && v < 1:
		return fmt.Sprintf("%.3g ms", 1000*v)
	case unit == "s" && v >= 120:
		return fmt.Sprintf("%.3g min", v/60)
	case unit == "s":
		return fmt.Sprintf("%.3g s", v)
	case unit == "ops":
		return fmt.Sprintf("%.3g/s", v)
	case v >= 10_000:
		return fmt.Sprintf("%.3gk", v/1000)
	}
	return fmt.Sprintf("%.4g", v)
}
