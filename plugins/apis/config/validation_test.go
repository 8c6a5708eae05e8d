// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

func TestValidateFailover(t *testing.T) {
	for name, c := range map[string]struct {
		failover string
		movable  bool
		want     string
	}{
		"Wait":                                  {failover: "Wait"},
		"Reassign":                              {failover: "Reassign"},
		"Migrate":                               {failover: "Migrate", movable: true},
		"Migrate without allowAddressMigration": {failover: "Migrate", want: `args.failover: Invalid value: "Migrate": addresses cannot migrate while allowAddressMigration is false`},
		"an unknown policy":                     {failover: "Move", movable: true, want: `args.failover: Unsupported value: "Move": supported values: "Wait", "Migrate", "Reassign"`},
	} {
		args := &FixedIPArgs{IPFamilies: []string{"IPv4"}, ClaimTimeout: &metav1.Duration{Duration: time.Second}, ClaimQPS: ptr.To[float32](1), ClaimBurst: ptr.To[int32](1), Failover: c.failover, AllowAddressMigration: c.movable}
		got := ""
		if err := ValidateFixedIPArgs(field.NewPath("args"), args).ToAggregate(); err != nil {
			got = err.Error()
		}
		if (got == "") != (c.want == "") || !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: got error %q, want %q", name, got, c.want)
		}
	}
}
