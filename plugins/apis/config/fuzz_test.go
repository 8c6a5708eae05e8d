// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	schedscheme "k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"sigs.k8s.io/yaml"

	"fixedip.io/fixedip/ipam/core/address"
	"fixedip.io/fixedip/ipam/core/identity"
)

// The plugin's arguments, as they stand in the scheduler's file: they are read with their defaults, every field
// that is wrong is named, what passes can be worked with, and what is written down again reads the same.
func FuzzFixedIPArgs(f *testing.F) {
	for _, seed := range []string{
		"{}", "ipFamilies: [IPv4, IPv6]", "ipFamilies: []", "ipFamilies: [IPv5, IPv4, IPv4]", "claimTimeout: 0s", "claimTimeout: 1h", "claimTimeout: soon", "claimQPS: -1", "claimQPS: 1e39", "claimQPS: .nan", "claimBurst: 4294967296",
		"failover: Migrate", "failover: Migrate\nallowAddressMigration: true", "strictNodes: ''", "strictNodes: ' '", "strictNodes: \"\\0\"", "strictNodes: a in", "workloads: [{apiGroup: apps, kind: Deployment, identity: Slot}]",
		"workloads: [{kind: Pod, identity: PodName}, {apiGroup: foo, kind: StatefulSet, identity: PodName}]", "workloads: [null]", "workloads: {}", "workloads: []", "ipFamily: IPv4", "kind: Other", "a: *b", "\t", "- x",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		args, err := read(text)
		if err != nil {
			if strings.TrimSpace(err.Error()) == "" {
				t.Errorf("%q is refused without a reason", text)
			}
			return
		}
		if errs := ValidateFixedIPArgs(field.NewPath("args"), args); len(errs) > 0 {
			for _, e := range errs {
				if !strings.HasPrefix(e.Field, "args.") || e.Detail == "" && e.Type != field.ErrorTypeDuplicate || strings.Contains(e.Error(), "\n") {
					t.Errorf("%q is refused with %v", text, e)
				}
			}
			return
		}
		for _, name := range args.IPFamilies {
			if _, err := address.ParseFamily(name); err != nil {
				t.Error(err)
			}
		}
		if *args.StrictNodes != "" {
			if s, err := identity.ParseLabels(*args.StrictNodes); err != nil || s.Empty() || s.Matches(labels.Set{}) && !strings.ContainsAny(*args.StrictNodes, "!n") {
				t.Errorf("strict nodes are %q: %v", *args.StrictNodes, err)
			}
		}
		if !(*args.ClaimQPS > 0) || *args.ClaimBurst < 1 || args.ClaimTimeout.Duration <= 0 {
			t.Errorf("claims are made with %v requests a second, %d at once, in %v", *args.ClaimQPS, *args.ClaimBurst, args.ClaimTimeout.Duration)
		}
		identity.NewKinds(args.Workloads...)
		again, err := rewritten(t, args)
		if err != nil {
			t.Fatalf("%q was read, and can't be written down and read: %v", text, err)
		}
		if diff := cmp.Diff(args, again, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%q reads otherwise once it was written down (-first +second): %s", text, diff)
		}
	})
}

// read reads arguments as kube-scheduler does: within its own configuration.
func read(text []byte) (*FixedIPArgs, error) {
	args, err := yaml.YAMLToJSON(text)
	if err != nil {
		return nil, err
	}
	file := fmt.Sprintf(`{"apiVersion":"kubescheduler.config.k8s.io/v1","kind":"KubeSchedulerConfiguration","profiles":[{"schedulerName":"a","pluginConfig":[{"name":"FixedIP","args":%s}]}]}`, args)
	obj, _, err := schedscheme.Codecs.UniversalDecoder().Decode([]byte(file), nil, nil)
	if err != nil {
		return nil, err
	}
	for _, p := range obj.(*schedconfig.KubeSchedulerConfiguration).Profiles[0].PluginConfig {
		if args, ok := p.Args.(*FixedIPArgs); ok {
			return args, nil
		}
	}
	return nil, fmt.Errorf("%s are no arguments of ours", args)
}

// rewritten is what arguments are once they were written down as people write them.
func rewritten(t *testing.T, args *FixedIPArgs) (*FixedIPArgs, error) {
	t.Helper()
	text, err := yaml.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	return read(text)
}
