// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Command render writes manifests from the Helm chart, so that the kustomization and the chart install the same objects. It
// also copies the CustomResourceDefinitions, which controller-gen writes, and the alerts into the chart, and writes a table
// of the chart's values into the README of the chart.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"
)

const (
	// header is the first line of each rendered manifest.
	header = "# Written by make generate from charts/fixedip. Do not edit.\n\n"
	// source precedes the name of the template in the comment that Helm writes before each object.
	source = "# Source: fixedip/templates/"
)

// rendered contains the templates that become manifests of the same name. The template config.yaml is not among them:
// kustomize generates its ConfigMap from the files config.yaml and scheduler-config.yaml, so that a change restarts the
// pods.
var rendered = []string{"admission.yaml", "controller-rbac.yaml", "controller.yaml", "networkpolicy.yaml", "scheduler-rbac.yaml", "scheduler.yaml", "user-rbac.yaml"}

// checksum matches the annotation that restarts the pods when Helm changes the configuration. Manifests do not need it.
var checksum = regexp.MustCompile(`(?m)^ +annotations:\n( +# .*\n)? +checksum/config: .*\n`)

func main() {
	manifests := flag.String("manifests", "manifests", "Folder of the manifests")
	flag.Parse()
	if err := run(*manifests); err != nil {
		fmt.Fprintln(os.Stderr, "render:", err)
		os.Exit(1)
	}
}

func run(manifests string) error {
	chart := filepath.Join(manifests, "charts", "fixedip")
	if err := copyFiles(manifests, filepath.Join(chart, "files")); err != nil {
		return err
	}
	values, err := valuesOf(filepath.Join(manifests, "config.yaml"))
	if err != nil {
		return err
	}
	objects, err := template(chart, values)
	if err != nil {
		return err
	}
	for _, name := range rendered {
		if objects[name] == "" {
			return fmt.Errorf("the chart has no objects in templates/%s", name)
		}
		text := header + checksum.ReplaceAllString(objects[name], "")
		if err := os.WriteFile(filepath.Join(manifests, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	if err := writeSchedulerConfig(filepath.Join(manifests, "scheduler-config.yaml"), objects["config.yaml"]); err != nil {
		return err
	}
	return writeValues(filepath.Join(chart, "values.yaml"), filepath.Join(chart, "README.md"))
}

// copyFiles copies the CustomResourceDefinitions and the alerts into a folder of the chart.
func copyFiles(manifests, to string) error {
	files, err := filepath.Glob(filepath.Join(manifests, "crd", "*.yaml"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(to, "crd"), 0o755); err != nil {
		return err
	}
	for _, file := range append(files, filepath.Join(manifests, "prometheus", "rules.yaml")) {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		copied := filepath.Join(to, filepath.Base(file))
		if filepath.Base(filepath.Dir(file)) == "crd" {
			copied = filepath.Join(to, "crd", filepath.Base(file))
		}
		if err := os.WriteFile(copied, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// valuesOf returns, as JSON, the values with which the chart is rendered for the manifests. file is the configuration of the
// programs.
func valuesOf(file string) ([]byte, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var config map[string]any
	if err := yaml.Unmarshal(text, &config); err != nil {
		return nil, fmt.Errorf("parse %s: %w", file, err)
	}
	delete(config, "apiVersion")
	delete(config, "kind")
	return json.Marshal(map[string]any{
		"config": config,
		// kustomize sets the images; the CustomResourceDefinitions are manifests of their own.
		"image":         map[string]any{"tag": "latest"},
		"crds":          map[string]any{"install": false},
		"networkPolicy": map[string]any{"enabled": true},
		// The roles allow reading Deployments, so that a user can add them to the workloads in config.yaml without changing
		// the roles.
		"rbac": map[string]any{"workloadResources": []any{map[string]any{"apiGroup": "apps", "resource": "deployments"}}},
	})
}

// template renders the chart. Key: the name of the template. Value: its objects.
func template(chart string, values []byte) (map[string]string, error) {
	helm := exec.Command("go", "tool", "-modfile=hack/helm/go.mod", "helm", "template", "fixedip", chart, "--namespace", "fixedip-system", "--values", "-")
	var out, errs bytes.Buffer
	helm.Stdin, helm.Stdout, helm.Stderr = bytes.NewReader(values), &out, &errs
	if err := helm.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", strings.Join(helm.Args, " "), err, strings.TrimSpace(errs.String()))
	}
	objects := map[string]string{}
	for object := range strings.SplitSeq(out.String(), "---\n"+source) {
		name, text, ok := strings.Cut(object, "\n")
		if !ok {
			continue
		}
		if objects[name] != "" {
			text = "---\n" + text
		}
		objects[name] += strings.TrimSpace(text) + "\n"
	}
	return objects, nil
}

// writeSchedulerConfig writes the configuration of the scheduler, which is in a ConfigMap of the chart, to a file.
func writeSchedulerConfig(file, configMaps string) error {
	for text := range strings.SplitSeq(configMaps, "\n---\n") {
		var configMap struct{ Data map[string]string }
		if err := yaml.Unmarshal([]byte(text), &configMap); err != nil {
			return fmt.Errorf("parse the ConfigMaps of the chart: %w", err)
		}
		if config := configMap.Data["scheduler.yaml"]; config != "" {
			return os.WriteFile(file, []byte(header+config), 0o644)
		}
	}
	return fmt.Errorf("no ConfigMap of the chart has scheduler.yaml")
}
