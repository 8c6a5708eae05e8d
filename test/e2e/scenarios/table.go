// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fixedip.io/fixedip/hack/realcluster/layout"
)

// summary contains the results of a complete run that the table shows. It is stored in the work folder, so that versions can
// be run at different times.
type summary struct {
	Cilium     string
	Routing    layout.Routing
	Kubernetes string
	// Commit is the tag of the images, which is the commit of this repository as described by git.
	Commit     string
	UpdateRate time.Duration
	Began      time.Time
	Took       time.Duration
	Scenarios  []line
	// Watch describes the checks that ran throughout.
	Watch string
}

// line is the result of a scenario in a summary.
type line struct {
	Name, Detail string
	Took         time.Duration
	Failed       bool
}

// profile contains the options in which runs on one version of Cilium differ.
type profile struct {
	routing layout.Routing
	// kubernetes is the minor version of the control plane and the kubelets.
	kubernetes string
}

// profiles are the profiles of the table. Each version of Cilium must have a complete run of the first profile; the others
// are optional.
var profiles = []profile{{layout.Tunnel, layout.OwnKubernetes}, {layout.Native, layout.OwnKubernetes}, {layout.Tunnel, "1.35"}}

// folder returns the work folder of a run on a version of Cilium with the profile of o.
func (o options) folder(version string) string {
	name := "cilium-" + version
	if o.routing == layout.Native {
		name += "-native"
	}
	if o.kubernetes != layout.OwnKubernetes {
		name += "-kubernetes-" + o.kubernetes
	}
	return filepath.Join(o.dir, name)
}

// lines returns the minor versions of Cilium of all targets.
func (o options) lines() []string {
	var lines []string
	for _, at := range o.targets {
		if !slices.Contains(lines, at.line) {
			lines = append(lines, at.line)
		}
	}
	return lines
}

func (o options) summaryFile(version string) string { return o.folder(version) + ".json" }

// save writes the summary of the results to a file.
func (r results) save(o options) error {
	s := summary{Cilium: r.cilium, Routing: o.routing, Kubernetes: r.kubernetes, Commit: o.tag, UpdateRate: r.updateRate, Began: r.began, Took: r.took, Watch: r.watch.String()}
	for _, x := range r.outcomes {
		s.Scenarios = append(s.Scenarios, line{Name: x.name, Detail: x.detail, Took: x.took, Failed: x.err != nil})
	}
	data, err := json.MarshalIndent(s, "", "  ")
	if err == nil {
		err = os.WriteFile(o.summaryFile(r.at.line), data, 0o644)
	}
	if err != nil {
		return fmt.Errorf("save the results of Cilium %s: %w", r.at, err)
	}
	return nil
}

// lastRuns returns the summaries of the last complete runs, in the order of profiles and, within a profile, of versions.
// Runs of optional profiles may be missing. lastRuns returns an error if a run of the first profile is missing, or if a summary
// cannot be read or lacks the version of Kubernetes.
func lastRuns(o options) ([]summary, error) {
	var all []summary
	for i, p := range profiles {
		for _, version := range o.lines() {
			o.profile = p
			data, err := os.ReadFile(o.summaryFile(version))
			if i > 0 && errors.Is(err, fs.ErrNotExist) {
				continue
			}
			var s summary
			if err == nil {
				err = json.Unmarshal(data, &s)
			}
			if err != nil {
				return nil, fmt.Errorf("read the results of the last complete run on Cilium %s with %s routing and Kubernetes %s: %w", version, p.routing, p.kubernetes, err)
			}
			if s.Kubernetes == "" {
				return nil, fmt.Errorf("the results of the last complete run on Cilium %s lack the version of Kubernetes; run the scenarios on that version again", version)
			}
			all = append(all, s)
		}
	}
	return all, nil
}

// title returns the version of Cilium and the parts of the profile of a run that differ from the defaults.
func (s summary) title() string {
	title := "Cilium " + s.Cilium
	if s.Routing == layout.Native {
		title += ", native routing"
	}
	if !strings.HasPrefix(s.Kubernetes, "v"+layout.OwnKubernetes) {
		title += ", Kubernetes " + s.Kubernetes
	}
	return title
}

// writeTable writes the last complete run with each profile on each version as a page of the documentation, and the page of
// compatibility if o.compatibility is set.
func writeTable(o options) error {
	all, err := lastRuns(o)
	if err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString("# End to end on real Cilium\n\nWritten by `make e2e-matrix` and `make e2e-table`: seconds that each scenario took, on clusters of real nodes (kubelet,\n" +
		"containerd, Cilium's agent and CNI plugin, unmodified), with both families of addresses. Many scenarios run in parallel; their\n" +
		"code is in `test/e2e/scenarios`. Pods of other nodes are reached through tunnels, or with native routing by routes to the\n" +
		"subnets of nodes; with the latter, scenarios in which an address leaves its subnet are left out (-).\n\n| Scenario |")
	rule := "\n| --- |"
	for _, s := range all {
		fmt.Fprintf(&b, " %s |", s.title())
		rule += " --- |"
	}
	b.WriteString(rule + "\n")
	for _, name := range rows(all) {
		fmt.Fprintf(&b, "| %s |", name)
		for _, s := range all {
			fmt.Fprintf(&b, " %s |", s.cell(name))
		}
		b.WriteByte('\n')
	}
	b.WriteString("| all of them, with the start of the cluster |")
	for _, s := range all {
		fmt.Fprintf(&b, " %.0f |", s.Took.Seconds())
	}
	b.WriteString("\n\n")
	for _, s := range all {
		fmt.Fprintf(&b, "## %s\n\nOn %s, of commit %s, with Kubernetes %s. Agents report every %s.\n\nThroughout: %s.\n\n", s.title(), s.Began.UTC().Format(time.DateOnly),
			s.Commit, s.Kubernetes, s.UpdateRate, strings.ReplaceAll(s.Watch, "; ", ";\n"))
		for _, l := range s.Scenarios {
			if l.Name == ratioScenario {
				fmt.Fprintf(&b, "From deleted to ready again: %s.\n\n", l.Detail)
			}
		}
	}
	if err := os.WriteFile(o.table, []byte(strings.TrimRight(b.String(), "\n")+"\n"), 0o644); err != nil {
		return fmt.Errorf("write the table of results: %w", err)
	}
	if o.compatibility == "" {
		return nil
	}
	return writeCompatibility(o, all)
}

// rows returns the names of the rows of the table. A scenario has one row and, if it allows kills, a second row killed(name).
// A failed result without a scenario, such as that of the checks throughout, has a row of its own.
func rows(all []summary) []string {
	var names []string
	for _, s := range scenarios {
		names = append(names, s.name)
		if s.kills {
			names = append(names, killed(s.name))
		}
	}
	for _, s := range all {
		for _, l := range s.Scenarios {
			if l.Failed && !slices.Contains(names, l.Name) {
				names = append(names, l.Name)
			}
		}
	}
	return names
}

// cell returns the seconds that a scenario took, "**failed**" if it failed, or "-" if it did not run.
func (s summary) cell(name string) string {
	for _, l := range s.Scenarios {
		switch {
		case l.Name != name:
		case l.Failed:
			return "**failed**"
		default:
			return fmt.Sprintf("%.0f", l.Took.Seconds())
		}
	}
	return "-"
}
