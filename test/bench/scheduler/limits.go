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

// tolerance is the largest share by which a ratio may be worse than its recorded median: a ratio that is more than 15 % worse
// is a regression.
const tolerance = 0.15

// limit is the limit of a ratio or of a cost at one size and load. Either Ratio or Cost is set.
type limit struct {
	Ratio string `json:"ratio,omitempty"`
	Cost  string `json:"cost,omitempty"`
	Nodes int    `json:"nodes"`
	// Pods is the number of running pods.
	Pods    int  `json:"pods,omitempty"`
	Reports bool `json:"reports,omitempty"`
	// Searching is the number of pods that wait for slots.
	Searching int `json:"searching,omitempty"`
	// AtLeast is the lowest value of a ratio that is wanted; 0 if only a regression counts. AtMost is the highest value of
	// a cost that is wanted; nil for a ratio of CPU times if only a regression counts.
	AtLeast float64  `json:"atLeast,omitempty"`
	AtMost  *float64 `json:"atMost,omitempty"`
	// Runs contains the medians of former runs.
	Runs []recordedRun `json:"runs,omitempty"`
}

// recordedRun is the median of one former run.
type recordedRun struct {
	Commit string `json:"commit"`
	// Rounds is the number of rounds of the run.
	Rounds int     `json:"rounds"`
	Median float64 `json:"median"`
}

// figure returns the figure that is limited; ok is false if there is none with the name.
func (l limit) figure() (f figure, ok bool) {
	all, name := ratios, l.Ratio
	if l.Cost != "" {
		all, name = costs, l.Cost
	}
	if i := slices.IndexFunc(all, func(f figure) bool { return f.name == name }); i >= 0 {
		return all[i], true
	}
	return figure{}, false
}

// lowest returns the lowest ratio that is allowed. It is the higher one of two ratios: AtLeast, and the lowest ratio that is no
// regression.
func (l limit) lowest() float64 { return max(l.AtLeast, (1-tolerance)*l.recorded()) }

// highest returns the highest cost that is allowed: AtMost, or without it the highest ratio of CPU times that is no regression.
func (l limit) highest() float64 {
	if l.AtMost != nil {
		return *l.AtMost
	}
	return (1 + tolerance) * l.recorded()
}

// recorded returns the median of the recorded runs; 0 if there are none.
func (l limit) recorded() float64 {
	var medians []float64
	for _, r := range l.Runs {
		medians = append(medians, r.Median)
	}
	return median(medians)
}

// validate returns an error if the limit is invalid. A limit must name exactly one existing ratio or cost. The limit of a ratio
// needs atLeast or runs, and must not have atMost. The limit of a cost must not have atLeast. It needs atMost, that of a ratio of
// CPU times atMost or runs.
func (l limit) validate() error {
	f, ok := l.figure()
	switch {
	case (l.Ratio == "") == (l.Cost == ""):
		return fmt.Errorf("a limit at %d nodes needs either ratio or cost", l.Nodes)
	case !ok && l.Cost != "":
		return fmt.Errorf("there is no cost %q", l.Cost)
	case !ok:
		return fmt.Errorf("there is no ratio %q", l.Ratio)
	case l.Cost != "" && l.AtLeast != 0:
		return fmt.Errorf("the limit of %s at %d nodes has atLeast, which only ratios of throughput have", l.Cost, l.Nodes)
	case l.Cost != "" && l.AtMost == nil && !(f.relative && len(l.Runs) > 0):
		return fmt.Errorf("the limit of %s at %d nodes needs atMost, or runs if it is a ratio of CPU times", l.Cost, l.Nodes)
	case l.Ratio != "" && l.AtMost != nil:
		return fmt.Errorf("the limit of ratio %s at %d nodes has atMost, which only costs have", l.Ratio, l.Nodes)
	case l.Ratio != "" && l.lowest() <= 0:
		return fmt.Errorf("the limit of ratio %s at %d nodes has neither atLeast nor runs", l.Ratio, l.Nodes)
	}
	return nil
}

// compare returns an error if the median of the values is not within the limit. name is the name of the figure. There must
// be at least one value.
func (l limit) compare(name string, values []float64) error {
	m := median(values)
	found := fmt.Sprintf("%s is %.2f (%.2f to %.2f)", name, m, slices.Min(values), slices.Max(values))
	switch {
	case l.Cost != "" && m > l.highest():
		return fmt.Errorf("%s, want at most %.2f", found, l.highest())
	case l.Ratio != "" && m < l.lowest():
		return fmt.Errorf("%s, want at least %.2f", found, l.lowest())
	}
	return nil
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
		if err := l.validate(); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	return file.Limits, nil
}

// armsOf returns the names of the arms that the figures of the limits need, without repetitions.
func armsOf(limits []limit) []string {
	var arms []string
	for _, l := range limits {
		f, _ := l.figure()
		arms = append(arms, f.arms...)
	}
	slices.Sort(arms)
	return slices.Compact(arms)
}

// applicable returns the limits for the size and load of the report.
func (r *report) applicable(limits []limit) []limit {
	var found []limit
	for _, l := range limits {
		if l.Nodes == r.Size.Nodes && l.Pods == r.Size.Fixed+r.Size.Ordinary && l.Reports == r.Reports && l.Searching == r.Size.Searching {
			found = append(found, l)
		}
	}
	return found
}

// check compares the medians of the report with limits for its size and load. It returns the limits that are missed, and
// an error that names them. It also returns an error if the arms of none of these figures have run.
func (r *report) check(limits []limit) (missed []limit, err error) {
	var errs []error
	compared := 0
	// without contains the figures with limits whose arms have not run.
	var without []string
	for _, l := range limits {
		of, _ := l.figure()
		values := r.values(of)
		if len(values) == 0 {
			without = append(without, fmt.Sprintf("%s (arms %s)", of.name, strings.Join(of.arms, ",")))
			continue
		}
		compared++
		if err := l.compare(of.name, values); err != nil {
			missed, errs = append(missed, l), append(errs, err)
		}
	}
	if compared == 0 {
		return nil, fmt.Errorf("%s: no figure was compared with its limit, because no round has all arms of a figure with a limit; "+
			"run all arms of one of %s", r.name(), strings.Join(without, ", "))
	}
	if len(missed) > 0 {
		return missed, fmt.Errorf("%s: %w", r.name(), errors.Join(errs...))
	}
	fmt.Printf("\n%s: %d of %d figures with limits were compared; all of these are within their limits.\n",
		r.name(), compared, compared+len(without))
	return nil, nil
}
