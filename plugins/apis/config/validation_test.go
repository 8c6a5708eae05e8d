// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

func TestValidateFixedIPArgs(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*FixedIPArgs)
		want   string
	}{
		"valid":                            {change: func(*FixedIPArgs) {}},
		"no configuration":                 {change: func(a *FixedIPArgs) { a.Configuration = "" }, want: "args.configuration: Required value: must be the path of a file of kind FixedIPConfiguration"},
		"ciliumConfig without a namespace": {change: func(a *FixedIPArgs) { a.CiliumConfig = "cilium-config" }, want: `args.ciliumConfig: Invalid value: "cilium-config": "cilium-config" is not the name of a ConfigMap; write namespace/name, such as kube-system/cilium-config`},
		"claimTimeout of 0":                {change: func(a *FixedIPArgs) { a.ClaimTimeout = &metav1.Duration{} }, want: `args.claimTimeout: Invalid value: "0s": must be more than 0s and at most 5m0s`},
		"claimBurst of 0":                  {change: func(a *FixedIPArgs) { a.ClaimBurst = ptr.To[int32](0) }, want: "args.claimBurst: Invalid value: 0: must be at least 1"},
	} {
		args := &FixedIPArgs{Configuration: "/c", CiliumConfig: "kube-system/cilium-config", ClaimTimeout: &metav1.Duration{Duration: time.Second}, ClaimQPS: ptr.To[float32](1), ClaimBurst: ptr.To[int32](1)}
		c.change(args)
		got := ""
		if err := ValidateFixedIPArgs(field.NewPath("args"), args).ToAggregate(); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: got error %q, want %q", name, got, c.want)
		}
	}
}
