// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	schedoptions "k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	"k8s.io/utils/ptr"
	theirs "sigs.k8s.io/scheduler-plugins/apis/config"

	ours "fixedip.io/fixedip/plugins/apis/config"
)

// TestPluginsOfSchedulerPlugins checks that the scheduler registers FixedIP and exactly the plugins of the scheduler of
// scheduler-plugins. The test fails if an upgrade of that module adds or removes a plugin.
func TestPluginsOfSchedulerPlugins(t *testing.T) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/scheduler-plugins").Output()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	inspect(t, filepath.Join(strings.TrimSpace(string(dir)), "cmd", "scheduler", "main.go"), func(n ast.Node) {
		if call, ok := n.(*ast.CallExpr); ok && types.ExprString(call.Fun) == "app.WithPlugin" {
			want[types.ExprString(call.Args[0])] = types.ExprString(call.Args[1])
		}
	})
	if len(want) == 0 {
		t.Fatal("found no call of app.WithPlugin in main.go of scheduler-plugins")
	}
	want["fixedip.Name"] = "withHeapRule(fixedip.Factory())"
	got := map[string]string{}
	inspect(t, "main.go", func(n ast.Node) {
		if pair, ok := n.(*ast.KeyValueExpr); ok {
			got[types.ExprString(pair.Key)] = types.ExprString(pair.Value)
		}
	})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("plugins (-want +got): %s", diff)
	}
	if n := len(plugins()); n != len(want) {
		t.Errorf("got %d registered plugins, want %d; if the source of both schedulers lists the same plugins, two of them have the same name", n, len(want))
	}
}

// inspect calls visit for each node of the syntax tree of a file.
func inspect(t *testing.T, file string, visit func(ast.Node)) {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		visit(n)
		return true
	})
}

// TestArgumentsInOneFile checks that the arguments of FixedIP and of another plugin are decoded from one file, with
// defaults, and that unknown fields are errors.
func TestArgumentsInOneFile(t *testing.T) {
	config := func(fixedIP, coscheduling string) string {
		path := filepath.Join(t.TempDir(), "config.yaml")
		text := `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: fixedip-scheduler
  pluginConfig:
  - {name: FixedIP, args: {` + fixedIP + `}}
  - {name: Coscheduling, args: {` + coscheduling + `}}
`
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cfg, err := schedoptions.LoadConfigFromFile(klog.Background(), config("configuration: /c.yaml", "permitWaitingTimeSeconds: 7"))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]any{}
	for _, c := range cfg.Profiles[0].PluginConfig {
		if c.Name == "FixedIP" || c.Name == "Coscheduling" {
			got[c.Name] = c.Args
		}
	}
	want := map[string]any{
		"FixedIP":      &ours.FixedIPArgs{Configuration: "/c.yaml", CiliumConfig: "kube-system/cilium-config", ClaimTimeout: &metav1.Duration{Duration: 10 * time.Second}, ClaimQPS: ptr.To[float32](200), ClaimBurst: ptr.To[int32](400)},
		"Coscheduling": &theirs.CoschedulingArgs{PermitWaitingTimeSeconds: 7, PodGroupRejectPercentage: 10},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("arguments (-want +got): %s", diff)
	}
	for _, c := range []struct{ fixedIP, coscheduling, want string }{
		{"ipFamilies: [IPv4]", "", `unknown field "ipFamilies"`},
		{"", "permitWaitingTime: 7", `unknown field "permitWaitingTime"`},
	} {
		if _, err := schedoptions.LoadConfigFromFile(klog.Background(), config(c.fixedIP, c.coscheduling)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got error %v, want one that contains %s", err, c.want)
		}
	}
}
