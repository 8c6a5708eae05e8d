package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// throughout is the name of what is watched all the time.
const throughout = "throughout"

// outcome is what came of one scenario.
type outcome struct {
	name, detail string
	began        time.Time
	took         time.Duration
	err          error
	// archive is the file with logs and objects of a failure.
	archive string
}

// results are those of one version.
type results struct {
	line, cilium string
	updateRate   time.Duration
	began        time.Time
	took         time.Duration
	outcomes     []outcome
	watch        sums
	// told are the violations that stand in an outcome already.
	told map[string]bool
}

func (r *results) tell(violation string) {
	if r.told == nil {
		r.told = map[string]bool{}
	}
	r.told[violation] = true
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

// passed is false where nothing ran: a misspelt -run proves nothing.
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
	return fmt.Sprintf("Cilium %s: %d of %d passed in %s\n", r.cilium, len(r.outcomes)-r.failures(), len(r.outcomes), r.took.Round(time.Second))
}

// writeTable writes the results of several versions as a page of the documentation.
func writeTable(path string, all []results) error {
	var b strings.Builder
	b.WriteString("# End to end on real Cilium\n\nWritten by `make e2e-matrix`: seconds that each scenario took, on clusters of real nodes (kubelet, containerd,\n" +
		"Cilium's agent and CNI plugin, unmodified), with both families of addresses.\n\n| Scenario |")
	line := "\n| --- |"
	for _, r := range all {
		fmt.Fprintf(&b, " Cilium %s |", r.cilium)
		line += " --- |"
	}
	b.WriteString(line + "\n")
	var names []string
	for _, s := range scenarios {
		names = append(names, s.name)
		if s.kills {
			names = append(names, killed(s.name))
		}
	}
	// What was to have no result of its own has one if it failed.
	for _, r := range all {
		for _, o := range r.outcomes {
			if !slices.Contains(names, o.name) {
				names = append(names, o.name)
			}
		}
	}
	for _, name := range names {
		fmt.Fprintf(&b, "| %s |", name)
		for _, r := range all {
			fmt.Fprintf(&b, " %s |", r.cell(name))
		}
		b.WriteByte('\n')
	}
	b.WriteString("| all of them |")
	for _, r := range all {
		fmt.Fprintf(&b, " %.0f |", r.took.Seconds())
	}
	b.WriteString("\n\n")
	for _, r := range all {
		fmt.Fprintf(&b, "Cilium %s, agents report every %s. %s\n\n", r.cilium, r.updateRate, strings.ReplaceAll(r.watch.String(), "; ", ";\n"))
		for _, o := range r.outcomes {
			if o.name == ratioScenario {
				fmt.Fprintf(&b, "From deleted to ready again: %s.\n\n", o.detail)
			}
		}
	}
	if err := os.WriteFile(path, []byte(strings.TrimRight(b.String(), "\n")+"\n"), 0o644); err != nil {
		return fmt.Errorf("write the table of results: %w", err)
	}
	return nil
}

func (r results) cell(name string) string {
	for _, o := range r.outcomes {
		if o.name != name {
			continue
		}
		if o.err != nil {
			return "**failed**"
		}
		return fmt.Sprintf("%.0f", o.took.Seconds())
	}
	return "-"
}
