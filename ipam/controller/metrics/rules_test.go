// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/yaml"
)

var (
	fqName = regexp.MustCompile(`fqName: "([^"]+)"`)
	quoted = regexp.MustCompile(`"[^"]*"`)
	// word matches a name in an expression and the character after the name, which distinguishes metrics from functions and
	// labels.
	word = regexp.MustCompile(`\b([a-z_]+_[a-z_]+)\b\s*([({=]?)`)
)

// foreign are metrics of libraries that the rules use. The integration test of metrics checks that
// they are served.
var foreign = []string{"leader_election_master_status"}

// ofScheduler are metrics of the scheduler that the rules use. The test of the scheduler's metrics contains them.
var ofScheduler = []string{"fixedip_claims_total", "fixedip_cache_nodes", "fixedip_oldest_unplaced_pod_seconds"}

// own returns the names of the metrics of this package.
func own(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	ch := make(chan *prometheus.Desc, 100)
	registry.Describe(ch)
	sourcesCollector{}.Describe(ch)
	close(ch)
	for d := range ch {
		match := fqName.FindStringSubmatch(d.String())
		if match == nil {
			t.Fatalf("description %s has no fqName", d)
		}
		found[match[1]] = true
	}
	return found
}

// TestAlerts checks the alerts: every metric in an alert exists, because an alert on a metric that is not served never fires;
// no alert depends on the label node; the names are unique, and duration, severity, summary and description are set.
func TestAlerts(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("..", "..", "..", "manifests", "prometheus", "rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var manifest struct {
		APIVersion string         `json:"apiVersion"`
		Kind       string         `json:"kind"`
		Metadata   map[string]any `json:"metadata"`
		Spec       struct {
			Groups []struct {
				Name  string `json:"name"`
				Rules []struct {
					Alert       string            `json:"alert"`
					Expr        string            `json:"expr"`
					For         string            `json:"for"`
					Labels      map[string]string `json:"labels"`
					Annotations map[string]string `json:"annotations"`
				} `json:"rules"`
			} `json:"groups"`
		} `json:"spec"`
	}
	if err := yaml.UnmarshalStrict(data, &manifest); err != nil {
		t.Fatal(err)
	}
	if manifest.Kind != "PrometheusRule" {
		t.Fatalf("manifests/prometheus/rules.yaml: got kind %q, want PrometheusRule", manifest.Kind)
	}
	known, used := own(t), map[string]bool{}
	for _, name := range slices.Concat(foreign, ofScheduler) {
		known[name] = true
	}
	alerts := map[string]bool{}
	for _, g := range manifest.Spec.Groups {
		for _, r := range g.Rules {
			if alerts[r.Alert] {
				t.Errorf("alert %s is defined more than once", r.Alert)
			}
			alerts[r.Alert] = true
			if _, err := time.ParseDuration(r.For); err != nil {
				t.Errorf("alert %s: field \"for\" is not a duration: %v", r.Alert, err)
			}
			if s := r.Labels["severity"]; s != "warning" && s != "critical" {
				t.Errorf("alert %s: got severity %q, want warning or critical", r.Alert, s)
			}
			if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("alert %s has no summary or no description", r.Alert)
			}
			if strings.Contains(r.Expr, "node,") || strings.Contains(r.Expr, "(node") {
				t.Errorf("alert %s depends on the label node, which --metrics-per-node may turn off: %s", r.Alert, r.Expr)
			}
			metrics := 0
			for _, match := range word.FindAllStringSubmatch(quoted.ReplaceAllString(r.Expr, ""), -1) {
				if match[2] == "(" || match[2] == "=" {
					continue
				}
				metrics++
				name := strings.TrimSuffix(match[1], "_bucket")
				used[name] = true
				if !known[name] {
					t.Errorf("alert %s uses metric %s, which is not served", r.Alert, name)
				}
			}
			if metrics == 0 {
				t.Errorf("alert %s uses no metric: %s", r.Alert, r.Expr)
			}
		}
	}
	for _, name := range []string{"fixedip_nodes_low_on_dynamic_addresses", "fixedip_mismatched_pods", "leader_election_master_status"} {
		if !used[name] {
			t.Errorf("no alert uses metric %s", name)
		}
	}
}
