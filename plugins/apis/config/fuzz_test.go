// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/util/validation/field"
	schedconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	schedscheme "k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"sigs.k8s.io/yaml"
)

// FuzzFixedIPArgs decodes any text as arguments in the scheduler's configuration file. It checks that errors of the decoder
// have a text, that errors of the validation name the invalid field, that valid arguments are usable, and that encoding
// and decoding valid arguments does not change them.
func FuzzFixedIPArgs(f *testing.F) {
	for _, seed := range []string{
		"{}", "configuration: /etc/fixedip/config.yaml", "configuration: ''", "configuration: [a]", "ciliumConfig: cilium/config", "ciliumConfig: a", "claimTimeout: 0s", "claimTimeout: 1h", "claimTimeout: soon", "claimQPS: -1", "claimQPS: 1e39", "claimQPS: .nan", "claimBurst: 4294967296",
		"ipFamilies: [IPv4]", "kind: Other", "a: *b", "\t", "- x",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		args, err := read(text)
		if err != nil {
			if strings.TrimSpace(err.Error()) == "" {
				t.Errorf("decoding %q returned an error without a text", text)
			}
			return
		}
		if errs := ValidateFixedIPArgs(field.NewPath("args"), args); len(errs) > 0 {
			for _, e := range errs {
				if !strings.HasPrefix(e.Field, "args.") || e.Detail == "" && e.Type != field.ErrorTypeDuplicate || strings.Contains(e.Error(), "\n") {
					t.Errorf("validation of %q returned %v, want an error on one line with a field below args and a detail", text, e)
				}
			}
			return
		}
		if !(*args.ClaimQPS > 0) || *args.ClaimBurst < 1 || args.ClaimTimeout.Duration <= 0 {
			t.Errorf("got claimQPS %v, claimBurst %d, claimTimeout %v; want values greater than 0", *args.ClaimQPS, *args.ClaimBurst, args.ClaimTimeout.Duration)
		}
		again, err := roundTrip(t, args)
		if err != nil {
			t.Fatalf("arguments decoded from %q cannot be encoded and decoded again: %v", text, err)
		}
		if diff := cmp.Diff(args, again, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("arguments decoded from %q differ after encoding and decoding (-before +after): %s", text, diff)
		}
	})
}

// read decodes arguments as kube-scheduler does, as part of its configuration.
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
	return nil, fmt.Errorf("the plugin configuration has no FixedIPArgs: %s", args)
}

// roundTrip encodes arguments as YAML and decodes the result.
func roundTrip(t *testing.T, args *FixedIPArgs) (*FixedIPArgs, error) {
	t.Helper()
	text, err := yaml.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	return read(text)
}
