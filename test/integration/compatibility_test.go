// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"debug/buildinfo"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/discovery"

	"fixedip.io/fixedip/hack/cluster"
)

// row is one row of the version table in docs/project/compatibility.md. testedBy is the make target that tests the version.
type row struct{ module, version, testedBy string }

var rowPattern = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (v[0-9.]+) \\| [^|]+ \\| `([^`]+)` \\|$")

// TestG25CompatibilityTable checks the table of versions (G25). The table has to match go.mod, the built programs and the
// README, and each row has to name a make target. The API server of the tests has to report the version of Kubernetes that
// its program is built with. If FIXEDIP_CONTROL_PLANE names another control plane, that version may differ from the table.
func TestG25CompatibilityTable(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	read := func(path ...string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(append([]string{root}, path...)...))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	// table contains the rows of the document. Key: the module.
	table := map[string]row{}
	for _, cells := range rowPattern.FindAllStringSubmatch(read("docs", "project", "compatibility.md"), -1) {
		table[cells[1]] = row{cells[1], cells[2], cells[3]}
	}
	required := map[string]string{}
	for _, line := range regexp.MustCompile(`(?m)^\t(\S+) (v\S+)`).FindAllStringSubmatch(read("go.mod"), -1) {
		required[line[1]] = line[2]
	}

	linked := map[string]string{
		"k8s.io/kubernetes": "fixedip-controlplane", "go.etcd.io/etcd/server/v3": "fixedip-controlplane",
		"github.com/cilium/cilium": "fixedip-simnode", "sigs.k8s.io/scheduler-plugins": "fixedip-scheduler",
	}
	if len(table) != len(linked) {
		t.Errorf("the table has the rows %v, want one for each of %v", table, linked)
	}
	makefile := read("Makefile")
	for module, program := range linked {
		r := table[module]
		if r.version == "" || r.version != required[module] {
			t.Errorf("the table has the version %q of %s, want %q as in go.mod", r.version, module, required[module])
		}
		if in := dependency(t, filepath.Join(bin, program), module); in != r.version {
			t.Errorf("the table has the version %q of %s, but %s is built with %s", r.version, module, program, in)
		}
		if target, ok := strings.CutPrefix(r.testedBy, "make "); !ok || !strings.Contains(makefile, "\n"+target+":") {
			t.Errorf("%s is tested by %q, which is not a make target", module, r.testedBy)
		}
	}
	if in := dependency(t, filepath.Join(bin, "race", "fixedip-scheduler"), "k8s.io/kubernetes"); in != table["k8s.io/kubernetes"].version {
		t.Errorf("fixedip-scheduler is built with Kubernetes %s, want %q as in the table", in, table["k8s.io/kubernetes"].version)
	}

	// The summary in the README has the same versions without the patch number.
	short := regexp.MustCompile(`\*\*Built with\*\* \| Kubernetes ([0-9.]+), Cilium ([0-9.]+), scheduler-plugins ([0-9.]+) \|`).FindStringSubmatch(read("README.md"))
	for i, module := range []string{"k8s.io/kubernetes", "github.com/cilium/cilium", "sigs.k8s.io/scheduler-plugins"} {
		if short == nil || table[module].version == "" || "v"+short[i+1] != table[module].version[:strings.LastIndex(table[module].version, ".")] {
			t.Errorf("the README has the versions %q, want %s %s", short, module, table[module].version)
		}
	}

	e := startCluster(t)
	cfg, err := e.RESTConfig(cluster.Admin)
	e.must(err)
	client, err := discovery.NewDiscoveryClientForConfig(cfg)
	e.must(err)
	server, err := client.ServerVersion()
	e.must(err)
	if want := dependency(t, apiServer, "k8s.io/kubernetes"); server.GitVersion != want {
		t.Errorf("the API server of the tests reports the version %s, want %s, with which it is built", server.GitVersion, want)
	}
}

// dependency returns the version of a module in a program; "none" if the program does not contain the module.
func dependency(t *testing.T, program, module string) string {
	t.Helper()
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(info.Deps, func(m *debug.Module) bool { return m.Path == module })
	if i < 0 {
		return "none"
	}
	if r := info.Deps[i].Replace; r != nil {
		return r.Version
	}
	return info.Deps[i].Version
}
