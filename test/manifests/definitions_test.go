// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// TestCategories checks that no category is also a name of a resource. kubectl expands a category before it looks for a
// singular or short name. So kubectl get with that name and the name of an object would request an object of each kind of
// the category (ADR 0056). TestCategories also checks that no name belongs to two resources, and that fixedip-all is the only
// category.
func TestCategories(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, "manifests", "crd", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var definitions installed
	for _, file := range files {
		definitions = append(definitions, kustomize(t, file)...)
	}
	names, categories := map[string]string{}, map[string]int{}
	for _, crd := range all[apiextensionsv1.CustomResourceDefinition](t, definitions, "CustomResourceDefinition") {
		n := crd.Spec.Names
		for _, name := range append([]string{n.Singular, n.Plural}, n.ShortNames...) {
			if other, double := names[name]; double {
				t.Errorf("the name %s belongs to %s and to %s", name, other, crd.Name)
			}
			names[name] = crd.Name
		}
		for _, category := range n.Categories {
			categories[category]++
		}
	}
	if diff := cmp.Diff(map[string]int{"fixedip-all": 2}, categories); diff != "" {
		t.Errorf("resources of each category (-want +got): %s", diff)
	}
	for category := range categories {
		if name := names[category]; name != "" {
			t.Errorf("the category %s is also a name of %s", category, name)
		}
	}
}
