// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"slices"
	"text/tabwriter"
	"time"
)

// report prints the barriers without an answer and a table with one line for each disturbance and one for all of them. It
// returns an error if an answer was wrong or missing.
func report(results []result) error {
	for _, r := range results {
		if !r.Answered {
			fmt.Printf("UNANSWERED: %s, %s: %s\n", r.Node, r.Disturbance, r.Last)
		}
	}
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\nDISTURBANCE\tBARRIERS\tANSWERED\tP50\tP99\tMAX\tAFTER P50\tAFTER MAX\tWRITES\tCONFLICTS\tINCOMPLETE\tNO POOL\tCLEAR\tIN USE\tUNKNOWN\tWRONG")
	wrong, missing := 0, 0
	for _, d := range append(slices.Clone(disturbances), disturbance{name: "all"}) {
		var sum struct{ n, answered, writes, conflicts, incomplete, noPool, clear, inUse, unknown, wrong int }
		var latencies, after []time.Duration
		for _, r := range results {
			if r.Disturbance != d.name && d.name != "all" {
				continue
			}
			sum.n++
			sum.writes += r.Writes
			sum.conflicts += r.Conflicts
			sum.clear += r.Clear
			sum.inUse += r.InUse
			sum.unknown += r.Unknown
			sum.wrong += len(r.Wrong)
			sum.incomplete += number(r.Incomplete)
			sum.noPool += number(r.NoPool)
			if r.Answered {
				sum.answered++
				latencies, after = append(latencies, r.Latency), append(after, r.After)
			}
		}
		if sum.n == 0 {
			continue
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%.2f\t%d\t%d\t%d\t%d\t%d\t%d\t%d\n", d.name, sum.n, sum.answered,
			quantile(latencies, 0.5), quantile(latencies, 0.99), quantile(latencies, 1), quantile(after, 0.5), quantile(after, 1),
			float64(sum.writes)/float64(sum.n), sum.conflicts, sum.incomplete, sum.noPool, sum.clear, sum.inUse, sum.unknown, sum.wrong)
		wrong, missing = sum.wrong, sum.n-sum.answered
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if wrong > 0 || missing > 0 {
		return fmt.Errorf("%d errors in answers, %d barriers without an answer", wrong, missing)
	}
	return nil
}

func number(b bool) int {
	if b {
		return 1
	}
	return 0
}

// quantile returns the q-quantile of the durations, rounded to 10 ms; "-" if there are none.
func quantile(d []time.Duration, q float64) string {
	if len(d) == 0 {
		return "-"
	}
	sorted := slices.Sorted(slices.Values(d))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))].Round(10 * time.Millisecond).String()
}
