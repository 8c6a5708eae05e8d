// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"fixedip.io/fixedip/hack/realcluster/layout"
)

// TestParseTargets checks which values of -cilium are accepted.
func TestParseTargets(t *testing.T) {
	for name, c := range map[string]struct {
		list string
		want []string
		// err is a part of the error; empty: no error.
		err string
	}{
		"one version":           {list: "1.19", want: []string{"1.19"}},
		"overrides":             {list: "1.18,1.19/native,1.20/1.35", want: []string{"1.18", "1.19/native", "1.20/1.35"}},
		"unknown Cilium":        {list: "1.19,1.17", err: `-cilium 1.17: version "1.17" of Cilium`},
		"unknown Kubernetes":    {list: "1.19/1.33", err: `-cilium 1.19/1.33: version "1.33" of Kubernetes`},
		"misspelled routing":    {list: "1.18,1.19/ntive", err: `-cilium 1.19/ntive: version "ntive" of Kubernetes`},
		"empty after the comma": {list: "1.19,", err: `version "" of Cilium`},
	} {
		t.Run(name, func(t *testing.T) {
			o := options{profile: profile{layout.Tunnel, layout.OwnKubernetes}, updateRate: 15 * time.Second}
			targets, err := o.parseTargets(c.list)
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Fatalf("got error %v, want %q (empty: no error)", err, c.err)
			}
			var got []string
			for _, at := range targets {
				got = append(got, at.String())
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got targets %q, want %q", got, c.want)
			}
		})
	}
}
