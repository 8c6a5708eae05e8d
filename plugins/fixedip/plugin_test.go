// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/core/configuration"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/plugins/apis/config"
	"fixedip.io/fixedip/plugins/fixedip/binder"
	"fixedip.io/fixedip/plugins/fixedip/cache"
)

// profileOf is a framework whose profile enables the plugins in postFilter, in this order, at PostFilter.
type profileOf struct {
	framework.Framework
	postFilter []string
}

func (p profileOf) ProfileName() string { return "default-scheduler" }

func (p profileOf) ListPlugins() *schedconfig.Plugins {
	var plugins schedconfig.Plugins
	for _, name := range p.postFilter {
		plugins.PostFilter.Enabled = append(plugins.PostFilter.Enabled, schedconfig.Plugin{Name: name})
	}
	return &plugins
}

// TestOrderIsChecked checks that EventsToRegister, and so the start of the scheduler, fails if the plugin is not enabled at
// PostFilter or comes before DefaultPreemption. Finding S11.
func TestOrderIsChecked(t *testing.T) {
	for name, tc := range map[string]struct {
		postFilter []string
		want       string
	}{
		"after DefaultPreemption":   {postFilter: []string{"DefaultPreemption", Name}},
		"without DefaultPreemption": {postFilter: []string{Name}},
		"before DefaultPreemption":  {postFilter: []string{Name, "DefaultPreemption"}, want: "profile default-scheduler: plugin FixedIP comes before DefaultPreemption at postFilter"},
		"not enabled":               {postFilter: []string{"DefaultPreemption"}, want: "profile default-scheduler: plugin FixedIP is not enabled at postFilter"},
	} {
		p := &Plugin{handle: profileOf{postFilter: tc.postFilter}}
		events, err := p.EventsToRegister(t.Context())
		got := ""
		if err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, tc.want) || (got == "") != (tc.want == "") || (len(events) == 2+len(candidateEvents)) != (tc.want == "") {
			t.Errorf("%s: got error %q, want %q; got %d events", name, got, tc.want, len(events))
		}
	}
}

// TestFilterAllocatesNothing checks that Filter, which runs for each node, allocates no memory for a node that can take
// the pod.
func TestFilterAllocatesNothing(t *testing.T) {
	state, node := framework.NewCycleState(), framework.NewNodeInfo()
	node.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}})
	p := &Plugin{binder: &binder.Binder{Shared: &binder.Shared{Cache: &cache.Cache{Ledger: ledger.New()}}}}
	// A profile without families needs no free address on a node.
	state.Write(stateKey, &stateData{Plan: &binder.Plan{}})
	if n := testing.AllocsPerRun(100, func() {
		if status := p.Filter(t.Context(), state, nil, node); !status.IsSuccess() {
			t.Fatal(status)
		}
	}); n != 0 {
		t.Errorf("Filter allocates %v times, want none", n)
	}
}

// TestProfilesShareArguments checks that two profiles must have the same values of the arguments that configure shared
// state, and may have different values of all others. Finding S11.
func TestProfilesShareArguments(t *testing.T) {
	args := func(change ...func(*config.FixedIPArgs)) *config.FixedIPArgs {
		a := &config.FixedIPArgs{Configuration: "/etc/fixedip/config.yaml", CiliumConfig: "kube-system/cilium-config", ClaimTimeout: &metav1.Duration{Duration: time.Second}, ClaimQPS: ptr.To[float32](100), ClaimBurst: ptr.To[int32](200)}
		for _, c := range change {
			c(a)
		}
		return a
	}
	first := args()
	for name, tc := range map[string]struct {
		second *config.FixedIPArgs
		want   string
	}{
		"the same":             {second: args()},
		"another claimTimeout": {second: args(func(a *config.FixedIPArgs) { a.ClaimTimeout.Duration = time.Minute })},
		"another claimQPS":     {second: args(func(a *config.FixedIPArgs) { *a.ClaimQPS = 1 }), want: "FixedIPArgs of two profiles differ in claimQPS, which the profiles share; write the same values in each"},
		"another file, another claimBurst": {second: args(func(a *config.FixedIPArgs) {
			*a.ClaimBurst, a.Configuration = 1, "/other.yaml"
		}), want: "FixedIPArgs of two profiles differ in claimBurst, configuration, which the profiles share; write the same values in each"},
	} {
		got := ""
		if err := sameArgs(first, tc.second); err != nil {
			got = err.Error()
		}
		if got != tc.want {
			t.Errorf("%s: got error %q, want %q", name, got, tc.want)
		}
	}
}

// TestProfileIsNamed checks that a profile that enables the plugin has to be in schedulerNames.
func TestProfileIsNamed(t *testing.T) {
	for name, c := range map[string]struct {
		names []string
		want  string
	}{
		"named":     {names: []string{"batch", "fixedip-scheduler"}},
		"not named": {names: []string{"batch", "web"}, want: "profile fixedip-scheduler enables plugin FixedIP, but schedulerNames in the configuration is [batch, web]; add fixedip-scheduler to schedulerNames, or disable the plugin in that profile"},
		"no names":  {names: []string{}, want: "profile fixedip-scheduler enables plugin FixedIP, but schedulerNames in the configuration is []; add fixedip-scheduler to schedulerNames, or disable the plugin in that profile"},
	} {
		got := ""
		if err := checkProfile("fixedip-scheduler", configuration.Configuration{SchedulerNames: c.names}); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: got error %q, want %q", name, got, c.want)
		}
	}
}

// TestSettingsFollowCilium checks that the plugin reads the ConfigMap of Cilium if a setting depends on it, and only then.
func TestSettingsFollowCilium(t *testing.T) {
	const head = "apiVersion: config.fixedip.io/v1alpha1\nkind: FixedIPConfiguration\nsubnets: {source: Node}\n"
	for name, c := range map[string]struct {
		file, mode    string
		want, reads   bool
		wantErrPrefix string
	}{
		"tunnel":          {mode: "tunnel", want: true, reads: true},
		"native":          {mode: "native", reads: true},
		"native, Migrate": {file: "failover: Migrate\n", mode: "native", reads: true, wantErrPrefix: `pluginConfig[FixedIP].args.configuration: /c: failover: Invalid value: "Migrate"`},
		"explicit":        {file: "allowAddressMigration: true\n", mode: "native", want: true},
		"invalid":         {file: "failover: Move\n", mode: "tunnel", wantErrPrefix: `pluginConfig[FixedIP].args.configuration: /c: failover: Unsupported value: "Move"`},
	} {
		reads := false
		get := func(_ context.Context, key types.NamespacedName) (*corev1.ConfigMap, error) {
			reads = key == types.NamespacedName{Namespace: "cilium", Name: "config"}
			return &corev1.ConfigMap{Data: map[string]string{"routing-mode": c.mode}}, nil
		}
		args := &config.FixedIPArgs{Configuration: "/c", CiliumConfig: "cilium/config"}
		settings, err := readSettings(t.Context(), args, func(string) ([]byte, error) { return []byte(head + c.file), nil }, get)
		if got := fmt.Sprint(err); (err != nil || c.wantErrPrefix != "") && (c.wantErrPrefix == "" || !strings.HasPrefix(got, c.wantErrPrefix)) {
			t.Errorf("%s: got error %s, want %q", name, got, c.wantErrPrefix)
		}
		if err == nil && settings.MigrationAllowed() != c.want || reads != c.reads {
			t.Errorf("%s: MigrationAllowed returns %t, the ConfigMap was read: %t; want %t and %t", name, settings.MigrationAllowed(), reads, c.want, c.reads)
		}
	}
}
