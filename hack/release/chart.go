// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// namespace is the namespace of install.yaml.
const namespace = "fixedip-system"

// writeChart writes the chart with the version of the release, and install.yaml, which is that chart rendered with the
// configuration of manifests/config.yaml.
func (r *release) writeChart(ctx context.Context) error {
	number := strings.TrimPrefix(r.version, "v")
	if _, err := helm(ctx, nil, "package", filepath.Join("manifests", "charts", "fixedip"), "--version", number, "--app-version", r.version, "--destination", r.work); err != nil {
		return err
	}
	name := "fixedip-" + number + ".tgz"
	if err := repack(filepath.Join(r.work, name), r.file(name), r.time); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	config, err := os.ReadFile(filepath.Join("manifests", "config.yaml"))
	if err != nil {
		return err
	}
	values, err := installValues(config, r.registry)
	if err != nil {
		return fmt.Errorf("manifests/config.yaml: %w", err)
	}
	objects, err := helm(ctx, values, "template", "fixedip", r.file(name), "--namespace", namespace, "--values", "-")
	if err != nil {
		return err
	}
	space, err := os.ReadFile(filepath.Join("manifests", "namespace.yaml"))
	if err != nil {
		return err
	}
	return os.WriteFile(r.file("install.yaml"), []byte(install(r.version, string(space), objects)), 0o644)
}

// install returns the text of install.yaml. The namespace comes first, because the other objects need it.
func install(version, namespace, objects string) string {
	return fmt.Sprintf(`# fixedip %s, rendered from its Helm chart.
#
# Before kubectl apply --server-side -f install.yaml: set the pod CIDR of the cluster in the ConfigMap fixedip-config
# (subnets.clusterPools) and, if the nodes pull the images from a registry, the images of both Deployments.
%s---
%s
`, version, strings.TrimSpace(namespace)+"\n", strings.TrimPrefix(strings.TrimSpace(objects), "---\n"))
}

// installValues returns the values of the chart, as JSON, for a configuration of the programs.
func installValues(config []byte, registry string) ([]byte, error) {
	var settings map[string]any
	if err := yaml.Unmarshal(config, &settings); err != nil {
		return nil, err
	}
	delete(settings, "apiVersion")
	delete(settings, "kind")
	return json.Marshal(map[string]any{"config": settings, "image": map[string]any{"registry": registry}})
}

// helm runs Helm in the version that hack/helm/go.mod pins, and returns its standard output.
func helm(ctx context.Context, input []byte, args ...string) (string, error) {
	command := exec.CommandContext(ctx, "go", append([]string{"tool", "-modfile=" + filepath.Join("hack", "helm", "go.mod"), "helm"}, args...)...)
	var out, errs bytes.Buffer
	command.Stdin, command.Stdout, command.Stderr = bytes.NewReader(input), &out, &errs
	if err := command.Run(); err != nil {
		return "", fmt.Errorf("helm %s: %w: %s", args[0], err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}
