// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Command render writes manifests from the Helm chart, so that the kustomization and the chart install the same objects. It
// also copies the alerts, the dashboard and the CustomResourceDefinitions, which controller-gen writes, into the chart, and
// writes a table of the chart's values into the README of the chart.
//
// With -install it writes one file with the whole installation instead. Command release calls it for install.yaml.
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

const (
	// header is the first line of each rendered manifest except install.yaml.
	header = "# Written by make generate from charts/fixedip. Do not edit.\n\n"
	// source precedes the name of the template in the comment that Helm writes before each object.
	source = "# Source: fixedip/templates/"
)

// rendered contains the templates that become manifests. The template config.yaml is not among them: kustomize generates its
// ConfigMap from the files config.yaml and scheduler-config.yaml, so that a change restarts the pods. Key: the template.
// Value: the file in the folder of the manifests.
var rendered = map[string]string{
	"admission.yaml":       "admission.yaml",
	"controller-rbac.yaml": "controller-rbac.yaml",
	"controller.yaml":      "controller.yaml",
	"networkpolicy.yaml":   "networkpolicy.yaml",
	"podmonitor.yaml":      filepath.Join("prometheus", "podmonitor.yaml"),
	"scheduler-rbac.yaml":  "scheduler-rbac.yaml",
	"scheduler.yaml":       "scheduler.yaml",
	"uninstall.yaml":       "uninstall.yaml",
	"user-rbac.yaml":       "user-rbac.yaml",
}

// helmOnly matches the lines that only Helm needs: the annotation that restarts the pods when Helm changes the
// configuration, annotations of hooks, labels of the chart, and the annotation about the deletion of a resource.
var helmOnly = regexp.MustCompile(`(?m)^ +annotations:\n( +# .*\n)? +checksum/config: .*\n|^ +annotations:\n( +helm\.sh/hook.*\n)+|^ +(app\.kubernetes\.io/managed-by|helm\.sh/chart|helm\.sh/resource-policy): .*\n`)

func main() {
	manifests := flag.String("manifests", "manifests", "Folder of the manifests")
	chart := flag.String("chart", "", "With -install: the chart, a folder or an archive. Default: the chart in the folder of the manifests")
	install := flag.String("install", "", "Write the whole installation to this file, and nothing else")
	registry := flag.String("registry", "", "With -install: registry and folder of the images")
	tag := flag.String("tag", "", "With -install: tag of the images. Default: appVersion of the chart")
	flag.Parse()
	err := error(nil)
	if *install != "" {
		err = writeInstall(*manifests, cmp.Or(*chart, filepath.Join(*manifests, "charts", "fixedip")), *install, *registry, *tag)
	} else {
		err = run(*manifests)
	}
	if err != nil {
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
	// kustomize sets the images; the CustomResourceDefinitions are manifests of their own.
	values["image"] = map[string]any{"tag": "latest"}
	values["crds"] = map[string]any{"install": false}
	values["networkPolicy"] = map[string]any{"enabled": true}
	values["monitoring"] = map[string]any{"podMonitors": true}
	objects, err := template(chart, values)
	if err != nil {
		return err
	}
	for name, file := range rendered {
		if objects[name] == "" {
			return fmt.Errorf("the chart has no objects in templates/%s", name)
		}
		text := header + helmOnly.ReplaceAllString(objects[name], "")
		if err := os.WriteFile(filepath.Join(manifests, file), []byte(text), 0o644); err != nil {
			return err
		}
	}
	if err := writeSchedulerConfig(filepath.Join(manifests, "scheduler-config.yaml"), objects["config.yaml"]); err != nil {
		return err
	}
	return writeValues(filepath.Join(chart, "values.yaml"), filepath.Join(chart, "README.md"))
}

// copyFiles copies the CustomResourceDefinitions, the alerts and the dashboard into a folder of the chart.
func copyFiles(manifests, to string) error {
	files, err := filepath.Glob(filepath.Join(manifests, "crd", "*.yaml"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(to, "crd"), 0o755); err != nil {
		return err
	}
	dashboards, err := filepath.Glob(filepath.Join(manifests, "prometheus", "dashboard.json"))
	if err != nil {
		return err
	}
	for _, file := range slices.Concat(files, dashboards, []string{filepath.Join(manifests, "prometheus", "rules.yaml")}) {
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

// valuesOf returns the values with which the chart is rendered for the manifests and for install.yaml. file is the
// configuration of the programs.
func valuesOf(file string) (map[string]any, error) {
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
	return map[string]any{
		"config": config,
		// Users of these files change the configuration without rendering the chart again. So the roles include the rights
		// to read Deployments and to write MAC addresses.
		"rbac":      map[string]any{"workloadResources": []any{map[string]any{"apiGroup": "apps", "resource": "deployments"}}},
		"stickyMAC": true,
	}, nil
}

// template renders the chart and returns the objects of each template. Key: the name of the template. Value: its objects as
// YAML documents, separated by lines with "---".
func template(chart string, values map[string]any) (map[string]string, error) {
	input, err := json.Marshal(values)
	if err != nil {
		return nil, err
	}
	helm := exec.Command("go", "tool", "-modfile=hack/helm/go.mod", "helm", "template", "fixedip", chart, "--namespace", "fixedip-system", "--values", "-")
	var out, errs bytes.Buffer
	helm.Stdin, helm.Stdout, helm.Stderr = bytes.NewReader(input), &out, &errs
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
