// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"fixedip.io/fixedip/test/pages"
)

// TestPages runs the commands of every page of docs/start and docs/tasks, in the order of the page. Each page has its own
// namespace. The environment variable FIXEDIP_PAGES is a regular expression that selects pages and examples by name; if it is
// empty, all of them run.
func TestPages(t *testing.T) {
	all, err := pages.Documents(root)
	must(t, err)
	for _, p := range all {
		if len(p.Steps) == 0 || !selected(t, p.File) {
			continue
		}
		t.Run(strings.TrimSuffix(strings.TrimPrefix(filepath.ToSlash(p.File), "docs/"), ".md"), func(t *testing.T) {
			s := on(t, p.Families)
			ctx, cancel := context.WithTimeout(t.Context(), pageTimeout)
			defer cancel()
			namespace := "page-" + strings.TrimSuffix(filepath.Base(p.File), ".md")
			shell := s.shell(t, namespace)
			defer remove(t, shell, namespace)
			for _, step := range p.Steps {
				if offline, ok := pages.Offline[step.Command]; ok {
					step.Command = offline
				}
				t.Logf("line %d: %s", step.Line, step.Command)
				start := time.Now()
				if err := within(ctx, func(ctx context.Context) error { return shell.Run(ctx, step) }); err != nil {
					t.Fatalf("%s: %v\n%s", p.File, err, state(shell))
				}
				t.Logf("line %d: done after %.1f s", step.Line, time.Since(start).Seconds())
			}
		})
	}
}

// selected reports whether FIXEDIP_PAGES selects the name of a page or example.
func selected(t *testing.T, name string) bool {
	t.Helper()
	pattern, err := regexp.Compile(os.Getenv("FIXEDIP_PAGES"))
	must(t, err)
	return pattern.MatchString(name)
}

// within calls run with a context that ends after stepTimeout.
func within(ctx context.Context, run func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	return run(ctx)
}

// state returns the nodes, the pods, FixedIPs and last events of the namespace, and the pods of fixedip, for the message of
// a failure.
func state(shell pages.Shell) string {
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	shell.RetryFor = 0
	err := shell.Run(ctx, pages.Step{
		Command: "kubectl get nodes,pods,fixedips -o wide; kubectl get events --sort-by=.lastTimestamp | tail -n 30; kubectl -n fixedip-system get pods -o wide",
		Output:  []string{"the state, which is printed as the output of a command that does not match"},
	})
	return err.Error()
}
