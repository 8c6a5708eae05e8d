// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// tolerance is the default limit of a ratio, as a share of the median of its former runs.
const tolerance = 0.85

// limit is the lowest value that a ratio may have at one size and load, or the highest value of a figure of ratios whose lower
// values are better.
type limit struct {
	Ratio string `json:"ratio"`
	Nodes int    `json:"nodes"`
	// Pods is the number of running pods.
	Pods    int  `json:"pods,omitempty"`
	Reports bool `json:"reports,omitempty"`
	// Searching is the number of pods that wait for slots.
	Searching int `json:"searching,omitempty"`
	// AtLeast is the limit; if 0, it is tolerance times the median of Runs.
	AtLeast float64 `json:"atLeast,omitempty"`
	// AtMost is the limit of a figure whose lower values are better. Such a figure has no default, because the median of a
	// difference may be 0.
	AtMost *float64 `json:"atMost,omitempty"`
	// Runs are the runs that the limit comes from.
	Runs []struct {
		Commit string  `json:"commit"`
		Median float64 `json:"median"`
	} `json:"runs"`
}

// value returns the lowest value that is allowed.
func (l limit) value() float64 {
	if l.AtLeast != 0 {
		return l.AtLeast
	}
	var medians []float64
	for _, r := range l.Runs {
		medians = append(medians, r.Median)
	}
	return tolerance * median(medians)
}

// readLimits reads a file of limits.
func readLimits(path string) ([]limit, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the limits: %w", err)
	}
	var file struct {
		Limits []limit `json:"limits"`
	}
	if err := yaml.UnmarshalStrict(data, &file); err != nil {
		return nil, fmt.Errorf("read the limits in %s: %w", path, err)
	}
	for _, l := range file.Limits {
		i := slices.IndexFunc(ratios, func(r ratio) bool { return r.name == l.Ratio })
		switch {
		case i < 0:
			return nil, fmt.Errorf("%s: there is no ratio %q", path, l.Ratio)
		case ratios[i].lower != (l.AtMost != nil), ratios[i].lower && l.AtLeast != 0:
			return nil, fmt.Errorf("%s: the limit of %s at %d nodes needs %s and nothing else", path, l.Ratio, l.Nodes, map[bool]string{true: "atMost", false: "atLeast or runs"}[ratios[i].lower])
		case !ratios[i].lower && l.value() <= 0:
			return nil, fmt.Errorf("%s: the limit of ratio %s at %d nodes has neither atLeast nor runs", path, l.Ratio, l.Nodes)
		}
	}
	return file.Limits, nil
}

// check compares the medians of a report with the limits of its size and load. It returns an error if a median is
// not within its limit, if there are no such limits, or if the report lacks the figures for all of them.
func (r *report) check(limits []limit) error {
	var missed []error
	compared := 0
	// without contains the ratios with limits whose arms have not run.
	var without []string
	for _, l := range limits {
		if l.Nodes != r.Size.Nodes || l.Pods != r.Size.Fixed+r.Size.Ordinary || l.Reports != r.Reports || l.Searching != r.Size.Searching {
			continue
		}
		of := ratios[slices.IndexFunc(ratios, func(x ratio) bool { return x.name == l.Ratio })]
		values := r.values(of)
		if len(values) == 0 {
			without = append(without, fmt.Sprintf("%s (arms %s)", l.Ratio, strings.Join(of.arms, ",")))
			continue
		}
		compared++
		switch m := median(values); {
		case of.lower && m > *l.AtMost:
			missed = append(missed, fmt.Errorf("%s is %.2f (%.2f-%.2f), want at most %.2f", l.Ratio, m, slices.Min(values), slices.Max(values), *l.AtMost))
		case !of.lower && m < l.value():
			missed = append(missed, fmt.Errorf("%s is %.2f (%.2f-%.2f), want at least %.2f", l.Ratio, m, slices.Min(values), slices.Max(values), l.value()))
		}
	}
	switch {
	case compared == 0 && len(without) > 0:
		return fmt.Errorf("%s: no ratio was compared with its limit, because no round has all arms of a ratio with a limit; "+
			"run all arms of one of %s", r.name(), strings.Join(without, ", "))
	case compared == 0:
		return fmt.Errorf("there are no limits for %s", r.name())
	}
	if len(missed) > 0 {
		return fmt.Errorf("%s: %w", r.name(), errors.Join(missed...))
	}
	fmt.Printf("\n%s: %d of %d ratios with limits were compared; all of these are within their limits.\n",
		r.name(), compared, compared+len(without))
	return nil
}
