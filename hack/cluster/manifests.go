// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/kustomize/api/konfig"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	crdclient "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/client"
)

// crdDir is the folder of the CRDs that the control plane creates before its controllers start.
const crdDir = "crds"

const crdKind = "CustomResourceDefinition"

// ReadManifests returns the objects that Apply applies for the same paths.
func ReadManifests(paths ...string) ([]*unstructured.Unstructured, error) {
	return readManifests(paths)
}

// readManifests returns the objects of YAML files and of the YAML files in folders. For a folder with a kustomization it
// returns the objects of the kustomization.
func readManifests(paths []string) ([]*unstructured.Unstructured, error) {
	var docs []*unstructured.Unstructured
	for _, path := range paths {
		if _, err := os.Stat(filepath.Join(path, konfig.DefaultKustomizationFileName())); err == nil {
			made, err := kustomize(path)
			if err != nil {
				return nil, err
			}
			docs = append(docs, made...)
			continue
		}
		err := filepath.WalkDir(path, func(file string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			// A file in paths is read regardless of its extension.
			if ext := filepath.Ext(file); file != path && ext != ".yaml" && ext != ".yml" {
				return nil
			}
			data, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			list, err := parseDocuments(data)
			if err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			docs = append(docs, list...)
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("read the manifests in %s: %w", path, err)
		}
	}
	return docs, nil
}

// kustomize returns the objects of a kustomization, like kubectl kustomize.
func kustomize(dir string) ([]*unstructured.Unstructured, error) {
	options := krusty.MakeDefaultOptions()
	options.Reorder = krusty.ReorderOptionLegacy
	made, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return nil, fmt.Errorf("build the kustomization %s: %w", dir, err)
	}
	data, err := made.AsYaml()
	if err != nil {
		return nil, fmt.Errorf("encode the objects of the kustomization %s: %w", dir, err)
	}
	return parseDocuments(data)
}

func parseDocuments(data []byte) ([]*unstructured.Unstructured, error) {
	var docs []*unstructured.Unstructured
	r := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		doc, err := r.Read()
		if errors.Is(err, io.EOF) {
			return docs, nil
		}
		if err != nil {
			return nil, err
		}
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(doc, &u.Object); err != nil {
			return nil, err
		}
		if len(u.Object) == 0 { // the document contains only comments
			continue
		}
		if u.GetKind() == "" || u.GetAPIVersion() == "" || u.GetName() == "" {
			return nil, fmt.Errorf("a document has no apiVersion, kind or name: %.80q", doc)
		}
		docs = append(docs, u)
	}
}

// writeCRDs writes the CRDs of the manifests and of Cilium to dir, one file for each CRD. cilium is the path of Cilium's
// CRDs; if it is "", writeCRDs writes those of CiliumNode and CiliumEndpoint from the Cilium module.
func writeCRDs(dir, cilium string, manifests []string) error {
	if cilium != "" {
		manifests = append(slices.Clone(manifests), cilium)
	}
	docs, err := readManifests(manifests)
	if err != nil {
		return err
	}
	docs = slices.DeleteFunc(docs, func(d *unstructured.Unstructured) bool { return d.GetKind() != crdKind })
	objects := map[string]any{} // Key: the name of the CRD.
	for _, d := range docs {
		objects[d.GetName()] = d.Object
	}
	if cilium == "" {
		for _, name := range []string{crdclient.CNCRDName, crdclient.CEPCRDName} {
			crd := crdclient.GetPregeneratedCRD(slog.New(slog.DiscardHandler), name)
			crd.TypeMeta = metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: crdKind}
			objects[crd.Name] = crd
		}
	}
	for name, object := range objects {
		data, err := yaml.Marshal(object)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name+".yaml"), data, 0o600)
		}
		if err != nil {
			return fmt.Errorf("encode and write the custom resource definition %s: %w", name, err)
		}
	}
	return nil
}
