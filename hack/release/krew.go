// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strings"

	"sigs.k8s.io/yaml"
)

// krewManifest is a Plugin of krew, the package manager of kubectl plugins.
type krewManifest struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   map[string]string `json:"metadata"`
	Spec       krewSpec          `json:"spec"`
}

type krewSpec struct {
	Version          string         `json:"version"`
	Homepage         string         `json:"homepage"`
	ShortDescription string         `json:"shortDescription"`
	Description      string         `json:"description"`
	Platforms        []krewPlatform `json:"platforms"`
}

type krewPlatform struct {
	Selector krewSelector `json:"selector"`
	URI      string       `json:"uri"`
	SHA256   string       `json:"sha256"`
	Bin      string       `json:"bin"`
	Files    []krewFile   `json:"files"`
}

type krewSelector struct {
	MatchLabels map[string]string `json:"matchLabels"`
}

type krewFile struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// writeKrew writes the krew manifest of the kubectl plugin to fixedip.yaml. The archives of the plugin must exist, because
// the manifest contains their SHA-256 sums.
func (r *release) writeKrew() error {
	var platforms []krewPlatform
	for _, t := range r.targets() {
		if t.program != kubectlPlugin {
			continue
		}
		archive := r.archive(t)
		sum, err := sha256Of(r.file(archive))
		if err != nil {
			return err
		}
		platforms = append(platforms, krewPlatform{
			Selector: krewSelector{map[string]string{"os": t.os, "arch": t.arch}},
			URI:      fmt.Sprintf("%s/%s/%s", strings.TrimSuffix(r.url, "/"), r.version, archive),
			SHA256:   sum,
			Bin:      t.binary(),
			Files:    []krewFile{{From: t.binary(), To: "."}, {From: "LICENSE", To: "."}},
		})
	}
	text, err := yaml.Marshal(krew(r.version, platforms))
	if err != nil {
		return err
	}
	return os.WriteFile(r.file("fixedip.yaml"), text, 0o644)
}

// krew returns the manifest of the kubectl plugin.
func krew(version string, platforms []krewPlatform) krewManifest {
	return krewManifest{
		APIVersion: "krew.googlecontainertools.github.com/v1alpha2",
		Kind:       "Plugin",
		Metadata:   map[string]string{"name": "fixedip"},
		Spec: krewSpec{
			Version:          version,
			Homepage:         "https://fixedip.io/fixedip",
			ShortDescription: "Show fixed pod IPs on Cilium and why pods wait",
			Description: "Shows which pod has which fixed address on Cilium in IPAM mode crd, explains why\n" +
				"a pod waits for its address, shows what a drain would do, and checks the\ncluster for contradictions.\n",
			Platforms: platforms,
		},
	}
}
