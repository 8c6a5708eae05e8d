// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// writeChart writes the chart with the version of the release, and install.yaml, which hack/render writes from that chart.
func (r *release) writeChart(ctx context.Context) error {
	number := strings.TrimPrefix(r.version, "v")
	if err := helm(ctx, "package", filepath.Join("manifests", "charts", "fixedip"), "--version", number, "--app-version", r.version, "--destination", r.work); err != nil {
		return err
	}
	name := "fixedip-" + number + ".tgz"
	if err := repack(filepath.Join(r.work, name), r.file(name), r.time); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	render := exec.CommandContext(ctx, "go", "run", "./hack/render", "-chart", r.file(name), "-install", r.file("install.yaml"), "-registry", r.registry, "-tag", r.version)
	if out, err := render.CombinedOutput(); err != nil {
		return fmt.Errorf("render install.yaml: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// helm runs Helm in the version that hack/helm/go.mod pins.
func helm(ctx context.Context, args ...string) error {
	command := exec.CommandContext(ctx, "go", append([]string{"tool", "-modfile=" + filepath.Join("hack", "helm", "go.mod"), "helm"}, args...)...)
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("helm %s: %w: %s", args[0], err, strings.TrimSpace(string(out)))
	}
	return nil
}
