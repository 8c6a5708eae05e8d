// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"time"
)

// throughout is the name of the checks that run during all scenarios.
const throughout = "throughout"

// outcome is the result of one scenario, or of a check without a scenario.
type outcome struct {
	name, detail string
	began        time.Time
	took         time.Duration
	err          error
	// archive is the path of the archive with logs and objects, or the error if the archive could not be written. It
	// is empty if the scenario passed.
	archive string
}

// results contains the results of a run on one version of Cilium.
type results struct {
	at target
	// cilium and kubernetes are the full versions, such as v1.19.4.
	cilium, kubernetes string

	updateRate time.Duration
	began      time.Time
	took       time.Duration
	outcomes   []outcome
	// leftOut contains the names of the scenarios for which -limit left no time.
	leftOut []string
	watch   sums
	// reported contains the violations that are already part of an outcome. Key: the text.
	reported map[string]bool
}

func (r *results) markReported(violation string) {
	if r.reported == nil {
		r.reported = map[string]bool{}
	}
	r.reported[violation] = true
}

func (r results) failures() int {
	n := 0
	for _, o := range r.outcomes {
		if o.err != nil {
			n++
		}
	}
	return n
}

// passed reports whether no outcome is a failure. It is false if no scenario ran and only the checks throughout have an
// outcome, as with a misspelled -run.
func (r results) passed() bool { return r.failures() == 0 && len(r.outcomes) > 1 }

func (o outcome) String() string {
	var b strings.Builder
	word := "ok  "
	if o.err != nil {
		word = "FAIL"
	}
	fmt.Fprintf(&b, "%s %6.1fs  %s", word, o.took.Seconds(), o.name)
	if o.detail != "" {
		fmt.Fprintf(&b, ": %s", o.detail)
	}
	fmt.Fprintln(&b)
	if o.err != nil {
		fmt.Fprintf(&b, "     %s\n", strings.ReplaceAll(o.err.Error(), "\n", "\n     "))
		if o.archive != "" {
			fmt.Fprintf(&b, "     logs and objects: %s\n", o.archive)
		}
	}
	return b.String()
}

func (r results) String() string {
	text := fmt.Sprintf("Cilium %s: %d of %d passed in %s\n", r.cilium, len(r.outcomes)-r.failures(), len(r.outcomes), r.took.Round(time.Second))
	if len(r.leftOut) > 0 {
		text += fmt.Sprintf("No time was left for %s\n", strings.Join(r.leftOut, ", "))
	}
	return text
}
