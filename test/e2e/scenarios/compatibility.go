// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"text/template"
	"time"
)

// compatibilityPage is the template of a page of the documentation: the versions of the modules that fixedip and its tests
// are built with, and the pairs of Kubernetes and Cilium that it was tested with.
var compatibilityPage = template.Must(template.New("").Parse(`# Compatibility

Written by ` + "`make e2e-matrix`" + ` and ` + "`make e2e-table`" + ` from the last complete run of the scenarios on each version.

## Tested combinations

The tests used unmodified control planes, kubelets and Cilium agents, and both families of addresses. Scenarios that
allow kills run a second time while the programs of fixedip are killed. [end-to-end.md](end-to-end.md) has the result
of each scenario.

| Kubernetes | Cilium | Routing | Commit | Date | Passed | Failed |
|---|---|---|---|---|---|---|
{{- range .Runs}}
| {{.Kubernetes}} | {{.Cilium}} | {{.Routing}} | {{.Commit}} | {{.Date}} | {{.Passed}} | {{.Failed}} |
{{- end}}

## Modules

` + "`TestG25CompatibilityTable`" + ` compares these versions with ` + "`go.mod`" + ` and with the programs that are built. It also compares the
version that the API server of the tests reports with the one that its program is built with. ` + "`make test-integration KUBERNETES=1.35`" + `
runs the tests on an API server of that version.

| Module | Version | Used for | Tested by |
|---|---|---|---|
{{- range .Modules}}
| ` + "`{{.Path}}` | {{.Version}} | {{.Use}} | `make test`" + ` |
{{- end}}

fixedip-scheduler is a kube-scheduler of the version of its module. Like any kube-scheduler it may be one minor version older
than the API server, and not newer: it ends with an error if the API server is older than itself. The CRD uses CEL functions for
IP addresses, so fixedip-controller ends with an error on an API server older than v1.30. If the API server is newer than the
versions that they were tested with, both programs log that and continue.
`))

// usedModules are the modules of the page and the use of each.
var usedModules = []struct{ Path, Version, Use string }{
	{Path: "k8s.io/kubernetes", Use: "the scheduler framework in fixedip-scheduler; in tests the API server and the controller manager"},
	{Path: "github.com/cilium/cilium", Use: "the types CiliumNode and CiliumEndpoint; in tests the agent's allocator (`pkg/ipam`, mode `crd`)"},
	{Path: "sigs.k8s.io/scheduler-plugins", Use: "all its plugins, compiled into fixedip-scheduler"},
	{Path: "go.etcd.io/etcd/server/v3", Use: "in tests the store of the API server"},
}

// combination is a row of the table of runs.
type combination struct {
	Kubernetes, Cilium, Routing, Commit, Date string
	Passed, Failed                            int
}

// writeCompatibility writes the page from the summaries of runs and the go.mod of the repository.
func writeCompatibility(o options, all []summary) error {
	requirements, err := os.ReadFile(filepath.Join(o.source, "go.mod"))
	if err != nil {
		return fmt.Errorf("read the versions of modules: %w", err)
	}
	page := struct {
		Runs    []combination
		Modules []struct{ Path, Version, Use string }
	}{Modules: usedModules}
	for i, m := range page.Modules {
		found := regexp.MustCompile(`(?m)^\t` + regexp.QuoteMeta(m.Path) + ` (v\S+)`).FindSubmatch(requirements)
		if found == nil {
			return fmt.Errorf("go.mod does not require %s", m.Path)
		}
		page.Modules[i].Version = string(found[1])
	}
	for _, s := range all {
		r := combination{Kubernetes: s.Kubernetes, Cilium: s.Cilium, Routing: string(s.Routing), Commit: s.Commit, Date: s.Began.UTC().Format(time.DateOnly)}
		for _, l := range s.Scenarios {
			if l.Failed {
				r.Failed++
			} else {
				r.Passed++
			}
		}
		page.Runs = append(page.Runs, r)
	}
	var b strings.Builder
	if err := compatibilityPage.Execute(&b, page); err != nil {
		return fmt.Errorf("render the page of versions: %w", err)
	}
	if err := os.WriteFile(o.compatibility, []byte(b.String()), 0o644); err != nil {
		return fmt.Errorf("write the page of versions: %w", err)
	}
	return nil
}
