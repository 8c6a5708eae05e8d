// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// waitingRow is a row of the tables of docs/reference/waiting.md.
type waitingRow struct{ state, message, finding, metric, alert, test string }

// waitingRows returns the rows of all tables of the page, without their headers.
func waitingRows(t *testing.T) (rows []waitingRow) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "waiting.md"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| State ") {
			continue
		}
		cells := strings.Split(strings.TrimSuffix(strings.TrimPrefix(line, "| "), " |"), " | ")
		if len(cells) != 6 {
			t.Errorf("got %d cells, want 6: %s", len(cells), line)
			continue
		}
		rows = append(rows, waitingRow{cells[0], cells[1], cells[2], strings.Trim(cells[3], "`"), cells[4], cells[5]})
	}
	return rows
}

// TestWaitingStates checks that each row of the page about waiting pods names an alert with its runbook, a metric that the
// programs serve or a reason of fixedip_unplaced_pods, and a test that exists, and that the page and the states of TestStates
// agree.
func TestWaitingStates(t *testing.T) {
	rows := waitingRows(t)
	if len(rows) < 20 {
		t.Fatalf("got %d rows, want at least 20", len(rows))
	}
	rules, _ := readRules(t)
	alerts := map[string]bool{}
	for _, r := range rules {
		alerts[r.Alert] = true
	}
	framework, err := os.ReadFile(filepath.Join("..", "framework", "states_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	served := metricNames(t)
	link := regexp.MustCompile(`^\[(\w+)\]\(\.\./operate/runbooks/(\w+)\.md\)$`)
	reasons := map[string]bool{"quota": true, "slot": true, "free_address": true, "node": true, "workload": true, "owner": true, "annotation": true}
	seen := map[string]bool{}
	for _, r := range rows {
		if seen[r.state] {
			t.Errorf("the state %q has two rows", r.state)
		}
		seen[r.state] = true
		if m := link.FindStringSubmatch(r.alert); m == nil || m[1] != m[2] || !alerts[m[1]] {
			t.Errorf("state %q: %s is not a link to the runbook of an alert", r.state, r.alert)
		}
		if !reasons[r.metric] && !served[r.metric] && r.metric != "leader_election_master_status" {
			t.Errorf("state %q: no program serves metric %s, and fixedip_unplaced_pods has no such reason", r.state, r.metric)
		}
		folder, test, _ := strings.Cut(r.test, " ")
		if !definesTest(t, filepath.Join("..", "..", filepath.FromSlash(folder)), test) {
			t.Errorf("state %q: folder %s has no test %s", r.state, folder, test)
		}
		if inStates := strings.Contains(string(framework), "\t\""+r.state+"\":"); inStates != (r.test == "test/framework TestStates") {
			t.Errorf("state %q: the page names the test %q; it must name test/framework TestStates if, and only if, TestStates has the state (it has the state: %t)", r.state, r.test, inStates)
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^\t"([^"]+)":\s+\{`).FindAllStringSubmatch(string(framework), -1) {
		if !seen[m[1]] {
			t.Errorf("the page has no row for the state %q of TestStates", m[1])
		}
	}
}

// definesTest reports whether a file in the folder defines the test.
func definesTest(t *testing.T, folder, test string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "\nfunc "+test+"(") {
			return true
		}
	}
	return false
}

// metricNames returns the names of the metrics of both programs. Key: the name. Value: true. It reads the golden file of the
// controller's metrics and the test of the scheduler's metrics, whose packages check that the programs serve the metrics. It adds
// two metrics of the scheduler for which the test has no TYPE line.
func metricNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{"fixedip_claim_duration_seconds": true, "fixedip_oldest_unplaced_pod_seconds": true}
	for _, file := range []string{filepath.Join("ipam", "controller", "metrics", "testdata", "metrics.txt"), filepath.Join("plugins", "fixedip", "metrics", "metrics_test.go")} {
		text, err := os.ReadFile(filepath.Join("..", "..", file))
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(`(?m)^# TYPE (\w+) `).FindAllStringSubmatch(string(text), -1)
		if len(found) < 10 {
			t.Fatalf("%s: got %d metrics, want at least 10", file, len(found))
		}
		for _, m := range found {
			names[m[1]] = true
		}
	}
	return names
}
