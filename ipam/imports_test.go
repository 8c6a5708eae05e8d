// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const module = "fixedip.io/fixedip/"

// rules define the imports that are allowed in each folder. For a file, the first rule whose folder contains the file
// applies.
var rules = []struct {
	folder string
	// ours are the folders of this module that the folder may import, with the folders below them.
	ours []string
	// never are packages outside this module that the folder may not import, with the packages below them.
	never []string
}{
	{"ipam/api", nil, []string{"k8s.io/client-go", "sigs.k8s.io/controller-runtime", "github.com/cilium"}},
	{"ipam/core/subnetplan", []string{"ipam/api", "ipam/core/address", "ipam/core/reservation", "ipam/core/pool"}, []string{"k8s.io/client-go", "sigs.k8s.io/controller-runtime", "github.com/cilium", "k8s.io/kubernetes", "context"}},
	{"ipam/core/nodepool", []string{"ipam/core/address", "ipam/core/pool"}, []string{"k8s.io", "sigs.k8s.io", "github.com/cilium", "context"}},
	{"ipam/core/reclaim", []string{"ipam/api", "ipam/core/address", "ipam/core/identity", "ipam/core/ledger", "ipam/core/podutil", "ipam/core/pool"}, []string{"k8s.io/client-go", "sigs.k8s.io/controller-runtime", "github.com/cilium", "k8s.io/kubernetes", "context"}},
	{"ipam/core/agentview", []string{"ipam/core/pool"}, []string{"k8s.io", "sigs.k8s.io", "github.com/cilium", "context", "time"}},
	{"ipam/core", []string{"ipam/api", "ipam/core"}, []string{"k8s.io/client-go", "sigs.k8s.io/controller-runtime", "github.com/cilium", "k8s.io/kubernetes", "context"}},
	{"ipam/scheme", []string{"ipam/api"}, []string{"k8s.io/kubernetes", "sigs.k8s.io/controller-runtime"}},
	{"ipam/store", []string{"ipam/api", "ipam/core", "ipam/store"}, []string{"k8s.io/kubernetes"}},
	{"ipam/controller/metrics", []string{"ipam/api", "ipam/core", "ipam/version"}, []string{"k8s.io/client-go", "k8s.io/kubernetes"}},
	{"ipam/controller/subnet", []string{"ipam/api", "ipam/core", "ipam/store", "ipam/controller/internal", "ipam/controller/metrics"}, []string{"k8s.io/kubernetes"}},
	{"ipam/controller/barrier", []string{"ipam/controller/internal/source", "ipam/core/agentview", "ipam/core/pool", "ipam/store/ciliumpool", "ipam/controller/metrics"}, []string{"k8s.io/kubernetes"}},
	{"ipam/controller/config", []string{"ipam/api", "ipam/controller/conformance", "ipam/controller/internal/source", "ipam/controller/metrics", "ipam/controller/scaledown", "ipam/core"}, []string{"k8s.io/kubernetes", "k8s.io/client-go", "sigs.k8s.io/controller-runtime", "github.com/cilium"}},
	{"ipam/controller/nodepool", []string{"ipam/api", "ipam/controller/internal", "ipam/core", "ipam/store/ciliumpool"}, []string{"k8s.io/kubernetes"}},
	{"ipam/controller/internal", []string{"ipam/api", "ipam/controller/internal", "ipam/controller/metrics", "ipam/core", "ipam/store"}, []string{"k8s.io/kubernetes"}},
	{"ipam/controller/waiting", []string{"ipam/api", "ipam/controller/internal", "ipam/controller/metrics", "ipam/core"}, []string{"k8s.io/kubernetes"}},
	{"ipam/controller/release", []string{"ipam/api", "ipam/controller/internal", "ipam/controller/metrics", "ipam/core", "ipam/store"}, []string{"k8s.io/kubernetes"}},
	{"ipam/controller/fixedip", []string{"ipam/api", "ipam/controller/barrier", "ipam/controller/internal", "ipam/controller/metrics", "ipam/controller/release", "ipam/core", "ipam/store"}, []string{"k8s.io/kubernetes"}},
	{"ipam/controller/scaledown", []string{"ipam/controller/internal", "ipam/core"}, []string{"k8s.io/kubernetes", "github.com/cilium"}},
	{"ipam/controller/uninstall", []string{"ipam/api", "ipam/controller/scaledown"}, []string{"k8s.io/kubernetes", "github.com/cilium"}},
	{"ipam/controller/poolguard", []string{"ipam/core/address"}, []string{"k8s.io/kubernetes", "github.com/cilium"}},
	{"ipam/controller", []string{"ipam/api", "ipam/core", "ipam/store", "ipam/controller"}, []string{"k8s.io/kubernetes"}},
	{"plugins/fixedip/requeue", []string{"ipam/core", "ipam/store/watch", "plugins/fixedip/metrics"}, []string{"k8s.io/kubernetes", "sigs.k8s.io/controller-runtime", "github.com/cilium"}},
	{"plugins/fixedip/cache", []string{"ipam/api", "ipam/core", "ipam/scheme", "ipam/store", "plugins"}, []string{"k8s.io/kubernetes"}},
	{"plugins/fixedip/binder", []string{"ipam/api", "ipam/core", "ipam/store/ciliumpool", "ipam/store/watch", "ipam/store/workloads", "plugins"}, []string{"k8s.io/kubernetes", "sigs.k8s.io/controller-runtime", "github.com/cilium"}},
	{"plugins", []string{"ipam/api", "ipam/core", "ipam/scheme", "ipam/store", "ipam/version", "plugins"}, nil},
	{"cmd/internal/heap", nil, nil},
	{"cmd/fixedip-scheduler", []string{"cmd/internal/heap", "ipam/version", "plugins"}, nil},
	{"cmd/fixedip-controller", []string{"cmd/internal/heap", "ipam/api", "ipam/controller", "ipam/core", "ipam/scheme", "ipam/store/ciliumconfigmap", "ipam/store/dryrun", "ipam/store/rights", "ipam/store/serverversion", "ipam/version"}, nil},
	{"cmd/kubectl-fixedip", []string{"ipam/api", "ipam/core", "ipam/scheme", "ipam/store/ciliumpool", "ipam/store/fixedips", "ipam/store/workloads", "ipam/version"}, nil},
	{"test/controllertest", []string{"ipam/api", "ipam/core", "ipam/scheme", "ipam/store"}, []string{"k8s.io/kubernetes"}},
	{"hack/witness", []string{"ipam/api", "ipam/scheme", "hack/reconnect"}, nil},
	{"hack", []string{"ipam/api", "ipam/scheme", "hack"}, nil},
}

// TestImports checks the imports of the Go files in the folders of rules, except tests, so that dependencies point
// toward the core.
func TestImports(t *testing.T) {
	files := 0
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if name := d.Name(); len(name) > 2 && strings.HasPrefix(name, ".") && d.IsDir() {
			// A running test cluster creates and deletes folders in hidden folders, which would make the walk fail.
			return fs.SkipDir
		}
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file := filepath.ToSlash(strings.TrimPrefix(path, "../"))
		for _, rule := range rules {
			if !strings.HasPrefix(file, rule.folder+"/") {
				continue
			}
			files++
			parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
			if err != nil {
				return err
			}
			for _, spec := range parsed.Imports {
				imported, err := strconv.Unquote(spec.Path.Value)
				if err != nil {
					return err
				}
				if !allowed(imported, rule.ours, rule.never) {
					t.Errorf("%s imports %s, which the rule for %s does not allow", file, imported, rule.folder)
				}
			}
			return nil
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 40 {
		t.Errorf("checked %d files, want at least 40; have the folders moved?", files)
	}
}

func allowed(imported string, ours, never []string) bool {
	if own, ok := strings.CutPrefix(imported, module); ok {
		for _, folder := range ours {
			if own == folder || strings.HasPrefix(own, folder+"/") {
				return true
			}
		}
		return false
	}
	for _, prefix := range never {
		if imported == prefix || strings.HasPrefix(imported, prefix+"/") {
			return false
		}
	}
	return true
}
