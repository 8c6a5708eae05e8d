// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/yaml"
)

// installCRDs reads CRDs from files and folders, creates those that the API server does not have, and waits until discovery
// lists the kinds of all of them. It does not change existing CRDs.
func installCRDs(ctx context.Context, cfg *rest.Config, paths []string) error {
	definitions, err := readCRDs(paths)
	if err != nil || len(definitions) == 0 {
		return err
	}
	client, err := apiextensions.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("create a client for custom resource definitions: %w", err)
	}
	pending := sets.New[string]()
	for _, d := range definitions {
		_, err := client.ApiextensionsV1().CustomResourceDefinitions().Create(ctx, d, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create custom resource definition %s: %w", d.Name, err)
		}
		pending.Insert(d.Name)
	}
	lw := cache.NewListWatchFromClient(client.ApiextensionsV1().RESTClient(), "customresourcedefinitions",
		metav1.NamespaceNone, fields.Everything())
	_, err = watchtools.UntilWithSync(ctx, lw, &apiextensionsv1.CustomResourceDefinition{}, nil, func(e watch.Event) (bool, error) {
		d, ok := e.Object.(*apiextensionsv1.CustomResourceDefinition)
		if ok && apihelpers.IsCRDConditionTrue(d, apiextensionsv1.Established) {
			pending.Delete(d.Name)
		}
		return pending.Len() == 0, nil
	})
	if err != nil {
		return fmt.Errorf("wait until the custom resource definitions %v are established: %w", sets.List(pending), err)
	}
	return waitDiscovered(ctx, client.Discovery(), definitions)
}

// waitDiscovered polls until discovery lists the kinds of the CRDs. That happens some time after the CRDs are
// established, without an event, and a client that looks up a kind earlier gets an error. The API server serves
// discovery of all groups and discovery of one group from different caches, so both must list the kinds.
func waitDiscovered(ctx context.Context, api discovery.DiscoveryInterface, definitions []*apiextensionsv1.CustomResourceDefinition) error {
	missing := sets.New[schema.GroupVersionKind]()
	for _, d := range definitions {
		for _, v := range d.Spec.Versions {
			if v.Served {
				missing.Insert(schema.GroupVersionKind{Group: d.Spec.Group, Version: v.Name, Kind: d.Spec.Names.Kind})
			}
		}
	}
	var last error
	err := wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(context.Context) (bool, error) {
		var all []*metav1.APIResourceList
		if _, all, last = api.ServerGroupsAndResources(); last != nil {
			return false, nil
		}
		for kind := range missing {
			var one *metav1.APIResourceList
			if one, last = api.ServerResourcesForGroupVersion(kind.GroupVersion().String()); last != nil {
				return false, nil
			}
			if named(kind, all...) && named(kind, one) {
				missing.Delete(kind)
			}
		}
		return missing.Len() == 0, nil
	})
	if err != nil {
		return fmt.Errorf("wait for discovery to list the kinds %v: %w", missing.UnsortedList(), errors.Join(last, err))
	}
	return nil
}

// named reports whether one of the lists contains the kind.
func named(kind schema.GroupVersionKind, lists ...*metav1.APIResourceList) bool {
	return slices.ContainsFunc(lists, func(l *metav1.APIResourceList) bool {
		return l.GroupVersion == kind.GroupVersion().String() &&
			slices.ContainsFunc(l.APIResources, func(r metav1.APIResource) bool { return r.Kind == kind.Kind })
	})
}

// readCRDs returns all CRDs in the given files and folders.
func readCRDs(paths []string) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	var all []*apiextensionsv1.CustomResourceDefinition
	for _, path := range paths {
		err := filepath.WalkDir(path, func(file string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			data, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			definitions, err := parseCRDs(data)
			if err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			all = append(all, definitions...)
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("read the custom resource definitions in %s: %w", path, err)
		}
	}
	return all, nil
}

// parseCRDs returns the CRDs in YAML documents. An object of another kind is an error. A document without a kind is ignored.
func parseCRDs(data []byte) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	var definitions []*apiextensionsv1.CustomResourceDefinition
	r := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		doc, err := r.Read()
		if errors.Is(err, io.EOF) {
			return definitions, nil
		}
		if err != nil {
			return nil, err
		}
		d := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(doc, d); err != nil {
			return nil, err
		}
		switch d.Kind {
		case "": // for example, a document that contains only comments
		case "CustomResourceDefinition":
			definitions = append(definitions, d)
		default:
			return nil, fmt.Errorf("found a %s instead of a CustomResourceDefinition", d.Kind)
		}
	}
}
