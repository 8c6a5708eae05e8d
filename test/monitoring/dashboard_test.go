// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// dashboard is the part of the Grafana dashboard that the tests read.
type dashboard struct {
	UID        string `json:"uid"`
	Title      string `json:"title"`
	Templating struct {
		List []struct{ Name, Type, Query string } `json:"list"`
	} `json:"templating"`
	Panels []panel `json:"panels"`
}

type panel struct {
	ID         int                            `json:"id"`
	Type       string                         `json:"type"`
	Title      string                         `json:"title"`
	Datasource struct{ Type, UID string }     `json:"datasource"`
	GridPos    struct{ X, Y, W, H int }       `json:"gridPos"`
	Targets    []struct{ Expr, RefID string } `json:"targets"`
}

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(manifests, "dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(data, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// TestDashboard checks that Grafana can import the dashboard with any data source, that its panels do not overlap, that the
// metrics of each query exist, and that panels show the metrics of all alerts except those in hidden.
func TestDashboard(t *testing.T) {
	d := readDashboard(t)
	if d.UID == "" || d.Title == "" {
		t.Errorf("got uid %q and title %q, want both", d.UID, d.Title)
	}
	if l := d.Templating.List; len(l) != 1 || l[0].Name != "datasource" || l[0].Type != "datasource" || l[0].Query != "prometheus" {
		t.Errorf("got variables %v, want the data source", l)
	}
	served := metricNames(t)
	served["leader_election_master_status"] = true
	name := regexp.MustCompile(`\b(fixedip_\w+|leader_election_\w+)`)
	ids, used := map[int]bool{}, map[string]bool{}
	for i, p := range d.Panels {
		if ids[p.ID] || p.Title == "" {
			t.Errorf("panel %d: got id %d and title %q, want a new id and a title", i, p.ID, p.Title)
		}
		ids[p.ID] = true
		for _, o := range d.Panels[:i] {
			if a, b := p.GridPos, o.GridPos; a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("panels %q and %q overlap", p.Title, o.Title)
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Datasource.UID != "${datasource}" || len(p.Targets) == 0 || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %q: got data source %q, %d queries and position %v, want ${datasource}, a query, and a position within 24 columns", p.Title, p.Datasource.UID, len(p.Targets), p.GridPos)
		}
		for _, q := range p.Targets {
			found := name.FindAllString(q.Expr, -1)
			if len(found) == 0 {
				t.Errorf("panel %q: query %q has no metric", p.Title, q.Expr)
			}
			for _, m := range found {
				for _, suffix := range []string{"_bucket", "_count", "_sum"} {
					m = strings.TrimSuffix(m, suffix)
				}
				used[m] = true
				if !served[m] {
					t.Errorf("panel %q: no program serves metric %s", p.Title, m)
				}
			}
		}
	}
	// hidden contains the metrics of alerts that no panel has to show.
	rules, _ := readRules(t)
	hidden := []string{"fixedip_informer_synced", "fixedip_last_reconcile_timestamp_seconds", "fixedip_resync_period_seconds", "fixedip_cluster_pool_subnets", "fixedip_nodes", "fixedip_ciliumendpoint_evictions_paused"}
	for _, r := range rules {
		for _, m := range name.FindAllString(r.Expr, -1) {
			if m = strings.TrimSuffix(m, "_bucket"); !used[m] && !slices.Contains(hidden, m) {
				t.Errorf("alert %s uses metric %s, which no panel shows", r.Alert, m)
			}
		}
	}
}

// TestQueries checks with promtool that the queries of the dashboard are valid.
func TestQueries(t *testing.T) {
	var records []map[string]string
	for _, p := range readDashboard(t).Panels {
		for _, q := range p.Targets {
			records = append(records, map[string]string{"record": fmt.Sprintf("panel%d:%s", p.ID, q.RefID), "expr": strings.ReplaceAll(q.Expr, "$__rate_interval", "5m")})
		}
	}
	data, err := yaml.Marshal(map[string]any{"groups": []map[string]any{{"name": "dashboard", "rules": records}}})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "queries.yaml"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, want := promtool(t, dir, "check", "rules", "queries.yaml"), fmt.Sprintf("%d rules found", len(records)); !strings.Contains(out, want) {
		t.Errorf("promtool check rules: got output %q, want it to contain %q", out, want)
	}
}
