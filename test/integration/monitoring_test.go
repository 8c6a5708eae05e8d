// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/component-base/metrics/testutil"
	"sigs.k8s.io/yaml"

	"fixedip.io/fixedip/hack/product"
)

// selector is a metric in an expression of an alert or of the dashboard, with the labels that the expression selects with = or =~.
type selector struct {
	metric string
	labels map[string]string
}

var (
	// selectors matches a metric and its label matchers.
	selectors = regexp.MustCompile(`\b((?:fixedip|leader_election)_\w+)(?:\{([^}]*)\})?`)
	// equal matches a matcher for one value of a label, or for one of several such as result=~"timeout|error".
	equal = regexp.MustCompile(`(\w+)=~?"([^"]*)"`)
)

// selectorsOf returns the metrics in an expression. A metric whose label may have one of several values is returned once for
// each value.
func selectorsOf(expr string) (found []selector) {
	for _, m := range selectors.FindAllStringSubmatch(expr, -1) {
		all := []selector{{metric: m[1]}}
		for _, l := range equal.FindAllStringSubmatch(m[2], -1) {
			var next []selector
			for _, s := range all {
				for value := range strings.SplitSeq(l[2], "|") {
					labels := map[string]string{l[1]: value}
					maps.Copy(labels, s.labels)
					next = append(next, selector{m[1], labels})
				}
			}
			all = next
		}
		found = append(found, all...)
	}
	return found
}

// monitored returns the metrics of all alerts and of all panels of the dashboard. Key: the name of the alert or panel.
func monitored(t *testing.T) map[string][]selector {
	t.Helper()
	read := func(file string, into any, parse func([]byte, any) error) {
		data, err := os.ReadFile(filepath.Join("..", "..", "manifests", "prometheus", file))
		if err != nil {
			t.Fatal(err)
		}
		if err := parse(data, into); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	var rules struct {
		Spec struct {
			Groups []struct {
				Rules []struct{ Alert, Expr string }
			}
		}
	}
	read("rules.yaml", &rules, func(data []byte, into any) error { return yaml.Unmarshal(data, into) })
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	read("dashboard.json", &dashboard, json.Unmarshal)
	all := map[string][]selector{}
	for _, g := range rules.Spec.Groups {
		for _, r := range g.Rules {
			all["alert "+r.Alert] = selectorsOf(r.Expr)
		}
	}
	for _, p := range dashboard.Panels {
		for _, q := range p.Targets {
			all["panel "+p.Title] = append(all["panel "+p.Title], selectorsOf(q.Expr)...)
		}
	}
	return all
}

// TestMonitoringNamesExist checks that the programs serve every metric that the alerts and the dashboard use, with the
// labels that these select with = or =~. The programs have just started and placed one pod. A metric must not appear only after a
// fault, because an alert could not distinguish a program without that fault from a program that is not scraped.
func TestMonitoringNamesExist(t *testing.T) {
	t.Parallel()
	e := start(t, options{noScheduler: true})
	e.startNode("node-1")
	port := freePort(t)
	e.startController("controller", append(slices.Clone(defaultPool), fmt.Sprintf("--metrics-bind-address=127.0.0.1:%d", port))...)
	e.must(e.WaitNodeReady(e.whileAllRun(), "node-1"))
	scheduler := e.startServing(product.SchedulerOptions{})
	e.create(statefulSet("web", 1))
	e.awaitRunning(nil, "web-0")

	all := monitored(t)
	if len(all) < 30 {
		t.Fatalf("got %d alerts and panels, want at least 30", len(all))
	}
	var missing []string
	err := e.pollWhileAllRun(200*time.Millisecond, func(ctx context.Context) (bool, error) {
		_, ofScheduler, err := scheduler.get(ctx, "/metrics", scheduler.token)
		if err != nil {
			return false, nil
		}
		ofController, err := scraped(ctx, port)
		if err != nil {
			return false, nil
		}
		samples := testutil.NewMetrics()
		for _, body := range []string{ofScheduler, ofController} {
			of := testutil.NewMetrics()
			if err := testutil.ParseMetrics(body, &of); err != nil {
				return false, err
			}
			for name, list := range of {
				samples[name] = append(samples[name], list...)
			}
		}
		missing = nil
		for user, metrics := range all {
			for _, s := range metrics {
				found := false
				for _, sample := range samples[s.metric] {
					matches := true
					for label, value := range s.labels {
						// The program has to serve the label, because no expression selects a label that Prometheus adds.
						got := ""
						for name, v := range sample.Metric {
							if string(name) == label {
								got = string(v)
							}
						}
						matches = matches && got == value
					}
					found = found || matches
				}
				if !found {
					missing = append(missing, fmt.Sprintf("%s: %s%v", user, s.metric, s.labels))
				}
			}
		}
		return len(missing) == 0, nil
	})
	if err != nil {
		slices.Sort(missing)
		t.Errorf("neither program serves these metrics (%v):\n%s", err, strings.Join(missing, "\n"))
	}
}

// scraped returns the metrics of the controller that listens on a port.
func scraped(ctx context.Context, port int) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/metrics", port), nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}
