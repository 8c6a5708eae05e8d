// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// installOrder contains the templates of install.yaml in the order in which kubectl applies their objects.
var installOrder = []string{
	"crds.yaml", "config.yaml", "controller-rbac.yaml", "scheduler-rbac.yaml", "user-rbac.yaml", "admission.yaml", "controller.yaml", "scheduler.yaml",
}

// installHeader is the beginning of install.yaml.
const installHeader = `# The whole installation of fixedip: kubectl apply --server-side -f FILE
#
# Before you apply it, write the pod CIDR of your cluster into config.yaml of the ConfigMap fixedip-config. If Cilium replaces
# kube-proxy, also create the ConfigMap fixedip-api-server with KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT, the address of the
# API server itself.

`

// writeInstall writes one file with all objects of the installation: those of the kustomization with the images of a
// registry.
func writeInstall(manifests, chart, file, registry, tag string) error {
	values, err := valuesOf(filepath.Join(manifests, "config.yaml"))
	if err != nil {
		return err
	}
	values["image"] = map[string]any{"registry": registry, "tag": tag}
	values["uninstall"] = map[string]any{"hook": false}
	objects, err := template(chart, values)
	if err != nil {
		return err
	}
	namespace, err := os.ReadFile(filepath.Join(manifests, "namespace.yaml"))
	if err != nil {
		return err
	}
	parts := []string{installHeader + strings.TrimSpace(string(namespace)) + "\n"}
	for _, name := range installOrder {
		if objects[name] == "" {
			return fmt.Errorf("the chart has no objects in templates/%s", name)
		}
		parts = append(parts, helmOnly.ReplaceAllString(objects[name], ""))
		delete(objects, name)
	}
	for name := range objects {
		return fmt.Errorf("templates/%s has objects, but is not in installOrder", name)
	}
	return os.WriteFile(file, []byte(strings.Join(parts, "---\n")), 0o644)
}
