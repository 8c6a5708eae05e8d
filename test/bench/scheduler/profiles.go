// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"fixedip.io/fixedip/test/bench/measure"
)

// cpuProfiles are the CPU profiles of a scheduler, one after the other, with their durations. At 5,000 nodes, the
// first profile covers the start of the scheduler, which lists all objects.
var cpuProfiles = []struct {
	kind    string
	seconds int
}{{"start.cpu", 3}, {"binds.cpu", 5}}

// profileCPU begins the CPU profiles of a scheduler that has just been started, if profiles are wanted. served is the
// URL at which the scheduler serves them. The returned function waits for their end, and also writes profiles of the
// heap and of all allocations. The figures of an arm with profiles are not comparable with figures without profiles.
func (b *bench) profileCPU(ctx context.Context, served string, a arm, round int) func() error {
	if b.profiles == "" {
		return func() error { return nil }
	}
	path := func(kind string) string {
		return filepath.Join(b.profiles, fmt.Sprintf("%s-%d.%s", a.name, round+1, kind))
	}
	done := make(chan error, 1)
	go func() {
		var errs []error
		for _, p := range cpuProfiles {
			url := fmt.Sprintf("%s/debug/pprof/profile?seconds=%d", served, p.seconds)
			errs = append(errs, measure.SaveServed(ctx, b.http, url, path(p.kind)))
		}
		done <- errors.Join(errs...)
	}()
	return func() error {
		errs := []error{<-done}
		for kind, query := range map[string]string{"heap": "heap?gc=1", "allocs": "allocs"} {
			errs = append(errs, measure.Save(ctx, b.http, served+"/debug/pprof/"+query, path(kind)))
		}
		return errors.Join(errs...)
	}
}
