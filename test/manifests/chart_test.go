// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/ipam/core/configuration"
)

var chart = filepath.Join(root, "manifests", "charts", "fixedip")

// helm runs Helm, and returns its standard output. values is the standard input of Helm: with the arguments --values -,
// Helm reads the values of the chart from it, as JSON or YAML.
func helm(values string, args ...string) (string, error) {
	c := exec.Command("go", append([]string{"tool", "-modfile=" + filepath.Join(root, "hack", "helm", "go.mod"), "helm"}, args...)...)
	var out, errs bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = strings.NewReader(values), &out, &errs
	if err := c.Run(); err != nil {
		return "", fmt.Errorf("helm %s: %w: %s", strings.Join(args, " "), err, errs.String())
	}
	return out.String(), nil
}

// clusterPool is the argument that sets the only value that the chart requires.
const clusterPool = "--set=config.subnets.clusterPools[0].cidr=10.240.0.0/16,config.subnets.clusterPools[0].maskSize=24"

// render returns the objects of the chart for an installation in the namespace. values are the values of the chart, as JSON or
// YAML. args are further arguments of helm template.
func render(t *testing.T, namespace, values string, args ...string) installed {
	t.Helper()
	text, err := helm(values, append([]string{"template", "fixedip", chart, "--namespace", namespace, "--values", "-"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	var objects installed
	for part := range strings.SplitSeq(text, "\n---\n") {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(part), &u.Object); err != nil {
			t.Fatalf("parse an object of the chart: %v\n%s", err, part)
		}
		if len(u.Object) > 0 {
			objects = append(objects, u)
		}
	}
	return objects
}

// TestChartLint checks the chart with helm lint.
func TestChartLint(t *testing.T) {
	if _, err := helm("", "lint", chart, "--strict", clusterPool); err != nil {
		t.Error(err)
	}
}

// keyed returns the objects without the intended differences between the installations. Key: "KIND NAMESPACE/NAME". The
// differences are
//
//   - the Namespace, which Helm creates, and hooks of Helm,
//   - in the ConfigMap of the configuration: the hash in the name, the labels, and comments,
//   - the hash in the references of ClusterRoles and Deployments to that ConfigMap,
//   - the labels of CustomResourceDefinitions, and the annotations of the pods of Deployments, and
//   - the labels and annotations that are for Helm only.
func keyed(t *testing.T, objects installed) map[string]map[string]any {
	t.Helper()
	all := map[string]map[string]any{}
	for _, u := range objects {
		name, annotations := u.GetName(), u.GetAnnotations()
		if u.GetKind() == "Namespace" || annotations["helm.sh/hook"] != "" {
			continue
		}
		labels := u.GetLabels()
		maps.DeleteFunc(labels, func(label, _ string) bool { return label == "helm.sh/chart" || label == "app.kubernetes.io/managed-by" })
		u.SetLabels(labels)
		switch u.GetKind() {
		case "ConfigMap":
			name, _, _ = strings.Cut(name, "-config-")
			name = strings.TrimSuffix(name, "-config") + "-config"
			u.SetLabels(nil)
			// In one of the installations, the text of config.yaml has comments. The hash does not depend on them.
			text, _, _ := unstructured.NestedString(u.Object, "data", "config.yaml")
			c, err := configuration.Parse([]byte(text), nil)
			if err != nil {
				t.Fatalf("parse config.yaml: %v", err)
			}
			hash, err := c.Hash()
			if err != nil {
				t.Fatal(err)
			}
			scheduler, _, _ := unstructured.NestedString(u.Object, "data", "scheduler.yaml")
			// The file of the kustomization begins with a comment.
			scheduler = scheduler[strings.Index(scheduler, "apiVersion:"):]
			if err := unstructured.SetNestedStringMap(u.Object, map[string]string{"config.yaml": hash, "scheduler.yaml": scheduler}, "data"); err != nil {
				t.Fatal(err)
			}
		case "ClusterRole":
			withoutHashes(t, u)
		case "CustomResourceDefinition":
			u.SetLabels(nil)
			delete(annotations, "helm.sh/resource-policy")
			u.SetAnnotations(annotations)
		case "Deployment":
			unstructured.RemoveNestedField(u.Object, "spec", "template", "metadata", "annotations")
			volumes, _, _ := unstructured.NestedSlice(u.Object, "spec", "template", "spec", "volumes")
			volumes[0].(map[string]any)["configMap"] = map[string]any{"name": "fixedip-config"}
			if err := unstructured.SetNestedSlice(u.Object, volumes, "spec", "template", "spec", "volumes"); err != nil {
				t.Fatal(err)
			}
		}
		u.SetName(name)
		all[u.GetKind()+" "+u.GetNamespace()+"/"+name] = u.Object
	}
	return all
}

// withoutHashes removes, from the rules of a role, the hash that kustomize appends to the name of the ConfigMap
// fixedip-config.
func withoutHashes(t *testing.T, role *unstructured.Unstructured) {
	t.Helper()
	rules, _, _ := unstructured.NestedSlice(role.Object, "rules")
	for _, rule := range rules {
		names, _, _ := unstructured.NestedStringSlice(rule.(map[string]any), "resourceNames")
		for i, name := range names {
			if strings.HasPrefix(name, "fixedip-config-") {
				names[i] = "fixedip-config"
			}
		}
		if len(names) > 0 {
			if err := unstructured.SetNestedStringSlice(rule.(map[string]any), names, "resourceNames"); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := unstructured.SetNestedSlice(role.Object, rules, "rules"); err != nil {
		t.Fatal(err)
	}
}

// sameWords compares strings regardless of white space, because kustomize breaks the lines of long expressions differently.
var sameWords = cmp.Comparer(func(a, b string) bool { return slices.Equal(strings.Fields(a), strings.Fields(b)) })

// TestChartIsTheKustomization checks that the chart, with the settings of the kustomization, installs the same objects as
// the kustomization.
func TestChartIsTheKustomization(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "manifests", "config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	if err := yaml.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	delete(config, "apiVersion")
	delete(config, "kind")
	values, err := json.Marshal(map[string]any{
		"config": config, "image": map[string]any{"tag": "latest"}, "stickyMAC": true,
		"rbac": map[string]any{"workloadResources": []any{map[string]any{"apiGroup": "apps", "resource": "deployments"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	want, got := keyed(t, kustomize(t, filepath.Join(root, "manifests"))), keyed(t, render(t, "fixedip-system", string(values)))
	if diff := cmp.Diff(want, got, sameWords); diff != "" {
		t.Errorf("objects of the kustomization (-) and of the chart (+):\n%s", diff)
	}
}

// TestInstallIsTheKustomization checks that the file of a release, install.yaml, installs the same objects as the
// kustomization, with the images of the registry, and begins with the Namespace. The file contains no hook of Helm: kubectl
// apply would start the Job that removes fixedip.
func TestInstallIsTheKustomization(t *testing.T) {
	file := filepath.Join(t.TempDir(), "install.yaml")
	c := exec.Command("go", "run", "./hack/render", "-install", file, "-registry", "registry.example.com/fixedip", "-tag", "v9")
	c.Dir = root
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("render install.yaml: %v: %s", err, out)
	}
	objects, err := cluster.ReadManifests(file)
	if err != nil {
		t.Fatal(err)
	}
	if objects[0].GetKind() != "Namespace" {
		t.Errorf("got %s as the first object of install.yaml, want the Namespace, which the others need", objects[0].GetKind())
	}
	for _, u := range objects {
		if u.GetKind() == "Job" || u.GetAnnotations()["helm.sh/hook"] != "" {
			t.Errorf("install.yaml contains %s %s, want no Job and no hook", u.GetKind(), u.GetName())
		}
		if u.GetKind() != "Deployment" {
			continue
		}
		containers, _, _ := unstructured.NestedSlice(u.Object, "spec", "template", "spec", "containers")
		container := containers[0].(map[string]any)
		if want := "registry.example.com/fixedip/" + u.GetName() + ":v9"; container["image"] != want {
			t.Errorf("Deployment %s: got image %s, want %s", u.GetName(), container["image"], want)
		}
		container["image"] = u.GetName() + ":latest"
		if err := unstructured.SetNestedSlice(u.Object, containers, "spec", "template", "spec", "containers"); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(keyed(t, kustomize(t, filepath.Join(root, "manifests"))), keyed(t, objects), sameWords); diff != "" {
		t.Errorf("objects of the kustomization (-) and of install.yaml (+):\n%s", diff)
	}
}

// TestChartWithSubnetsOfKubernetes checks that no cluster pool is required if Kubernetes assigns the subnets.
func TestChartWithSubnetsOfKubernetes(t *testing.T) {
	objects := render(t, "fixedip-system", `config: {subnets: {source: Node}}`)
	if c, err := configuration.Parse([]byte(configMap(t, objects)["config.yaml"]), nil); err != nil || c.Subnets.Source != configuration.FromNode {
		t.Errorf("config.yaml: got subnets.source %q (error %v), want Node", c.Subnets.Source, err)
	}
}

// TestChartNamespace checks that the chart can be installed in any namespace: its objects are in the namespace of the
// release, except those that must be in kube-system, and no object refers to the namespace fixedip-system. In kube-system,
// the chart installs no object twice.
func TestChartNamespace(t *testing.T) {
	// seen contains the objects of an installation in the namespace of Cilium. Key: kind, namespace and name.
	seen := map[string]bool{}
	for _, u := range render(t, "kube-system", "", clusterPool) {
		key := u.GetKind() + " " + u.GetNamespace() + "/" + u.GetName()
		if seen[key] {
			t.Errorf("the chart has %s twice if it is installed in kube-system", key)
		}
		seen[key] = true
	}
	for _, u := range render(t, "network", "", clusterPool) {
		if ns := u.GetNamespace(); ns != "" && ns != "network" && ns != "kube-system" {
			t.Errorf("%s %s is in namespace %s, want network or kube-system", u.GetKind(), u.GetName(), ns)
		}
		text, err := json.Marshal(u.Object)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(text, []byte("fixedip-system")) {
			t.Errorf("%s %s refers to the namespace fixedip-system", u.GetKind(), u.GetName())
		}
	}
}

// TestChartSchema checks that the schema of the chart has exactly the settings of the configuration.
func TestChartSchema(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(chart, "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var schema struct{ Properties map[string]any }
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	settings := sets.New[string]()
	var add func(path string, of reflect.Type)
	add = func(path string, of reflect.Type) {
		for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
			of = of.Elem()
		}
		if of.Kind() != reflect.Struct || !strings.HasPrefix(of.PkgPath(), "fixedip.io/") {
			settings.Insert(path)
			return
		}
		for i := range of.NumField() {
			if name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ","); name != "" {
				add(path+"."+name, of.Field(i).Type)
			}
		}
	}
	add("config", reflect.TypeFor[configuration.Configuration]())
	inSchema := sets.New[string]()
	var walk func(path string, node map[string]any)
	walk = func(path string, node map[string]any) {
		if items, ok := node["items"].(map[string]any); ok {
			node = items
		}
		properties, ok := node["properties"].(map[string]any)
		// A label selector is a type of Kubernetes.
		if !ok || properties["matchLabels"] != nil {
			inSchema.Insert(path)
			return
		}
		for name, property := range properties {
			walk(path+"."+name, property.(map[string]any))
		}
	}
	walk("config", schema.Properties["config"].(map[string]any))
	if diff := cmp.Diff(sets.List(settings), sets.List(inSchema)); diff != "" {
		t.Errorf("settings of the configuration (-) and of the schema (+):\n%s", diff)
	}
}

// TestChartMetadata checks that appVersion is the version of the chart after a "v", that the metadata for Artifact Hub
// lists the CustomResourceDefinitions of the chart, and that the API server accepts the examples in the metadata.
func TestChartMetadata(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(chart, "Chart.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var metadata struct {
		Version, AppVersion string
		Annotations         map[string]string
	}
	if err := yaml.Unmarshal(text, &metadata); err != nil {
		t.Fatal(err)
	}
	if metadata.AppVersion != "v"+metadata.Version {
		t.Errorf("got version %s and appVersion %s, want an appVersion that is the version after a v", metadata.Version, metadata.AppVersion)
	}
	var listed []struct{ Name, Kind, Version string }
	if err := yaml.Unmarshal([]byte(metadata.Annotations["artifacthub.io/crds"]), &listed); err != nil {
		t.Fatal(err)
	}
	got, want := sets.New[string](), sets.New[string]()
	for _, crd := range listed {
		got.Insert(crd.Kind + " " + crd.Version + " " + crd.Name)
	}
	for _, crd := range all[apiextensionsv1.CustomResourceDefinition](t, render(t, "fixedip-system", "", clusterPool), "CustomResourceDefinition") {
		want.Insert(crd.Spec.Names.Kind + " " + crd.Spec.Versions[0].Name + " " + crd.Name)
	}
	if !got.Equal(want) {
		t.Errorf("artifacthub.io/crds lists %v, want %v", sets.List(got), sets.List(want))
	}
	var examples []map[string]any
	if err := yaml.Unmarshal([]byte(metadata.Annotations["artifacthub.io/crdsExamples"]), &examples); err != nil || len(examples) == 0 {
		t.Fatalf("artifacthub.io/crdsExamples has %d examples (error %v), want at least one", len(examples), err)
	}
	for _, example := range examples {
		if errs := newAdmission(t).refuses(example); len(errs) > 0 {
			t.Errorf("the API server refuses the example %v: %v", example, errs.ToAggregate())
		}
	}
}

// TestChartLabels checks that each object of the chart has the labels that Kubernetes recommends. Pods have only the labels
// that do not name the chart, so that a new chart with the same program restarts no pod.
func TestChartLabels(t *testing.T) {
	ofPods := []string{"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component", "app.kubernetes.io/part-of", "app.kubernetes.io/version"}
	ofObjects := append(slices.Clone(ofPods), "app.kubernetes.io/managed-by", "helm.sh/chart")
	objects := render(t, "fixedip-system", `{monitoring: {podMonitors: true, rules: true}, networkPolicy: {enabled: true}}`, clusterPool)
	for _, u := range objects {
		for _, label := range ofObjects {
			if u.GetLabels()[label] == "" {
				t.Errorf("%s %s does not have the label %s", u.GetKind(), u.GetName(), label)
			}
		}
	}
	for _, d := range deployments(t, objects) {
		labels := d.Spec.Template.Labels
		for _, label := range ofPods {
			if labels[label] == "" {
				t.Errorf("the pods of Deployment %s do not have the label %s", d.Name, label)
			}
		}
		if labels["helm.sh/chart"] != "" || "fixedip-"+labels["app.kubernetes.io/component"] != d.Name {
			t.Errorf("the pods of Deployment %s have the labels %v, want the component of the Deployment, and no label helm.sh/chart", d.Name, labels)
		}
	}
}

// TestChartUninstall checks the hook that runs before the chart is uninstalled. The Job of the hook has a deadline. The pod of
// the Job has its own value of the label app, by which Deployments and PodDisruptionBudgets select pods. The hook has the rights
// of the controller, and its only other right is to scale the controller.
func TestChartUninstall(t *testing.T) {
	objects := render(t, "network", "", clusterPool)
	for _, u := range objects {
		if (u.GetAnnotations()["helm.sh/hook"] == "pre-delete") != (u.GetName() == "fixedip-uninstall") {
			t.Errorf("%s %s: got annotations %v; only the objects fixedip-uninstall are hooks", u.GetKind(), u.GetName(), u.GetAnnotations())
		}
	}
	jobs := all[batchv1.Job](t, objects, "Job")
	if len(jobs) != 1 {
		t.Fatalf("got %d Jobs, want 1", len(jobs))
	}
	job := jobs[0]
	if limit := job.Spec.ActiveDeadlineSeconds; ptr.Deref(limit, 300) >= 300 {
		t.Errorf("got a deadline of %d s (300: none), want less than the 300 s for which helm uninstall waits", ptr.Deref(limit, 300))
	}
	if app := job.Spec.Template.Labels["app"]; app != "fixedip-uninstall" {
		t.Errorf("got a pod with the label app=%s, want app=fixedip-uninstall, which nothing selects", app)
	}
	if c := job.Spec.Template.Spec.Containers[0]; !slices.Equal(c.Args, []string{"uninstall"}) || job.Spec.Template.Spec.ServiceAccountName != "fixedip-controller" {
		t.Errorf("got arguments %q and ServiceAccount %s, want uninstall and fixedip-controller", c.Args, job.Spec.Template.Spec.ServiceAccountName)
	}
	want := []rbacv1.PolicyRule{{APIGroups: []string{"apps"}, Resources: []string{"deployments/scale"}, ResourceNames: []string{"fixedip-controller"}, Verbs: []string{"get", "update"}}}
	var got []rbacv1.PolicyRule
	for _, r := range all[rbacv1.Role](t, objects, "Role") {
		if r.Name == "fixedip-uninstall" {
			got = append(got, r.Rules...)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rules of the hook (-want +got):\n%s", diff)
	}
}

// TestChartDashboard checks that the ConfigMap of the dashboard contains the dashboard, and has the label that Grafana's
// sidecar selects. Without the file of the dashboard, the chart refuses the value.
func TestChartDashboard(t *testing.T) {
	const values = `monitoring: {dashboard: true}`
	want, err := os.ReadFile(filepath.Join(chart, "files", "dashboard.json"))
	if os.IsNotExist(err) {
		if _, err := helm(values, "template", "fixedip", chart, "--values", "-", clusterPool); err == nil || !strings.Contains(err.Error(), "the chart has no files/dashboard.json") {
			t.Errorf("got %v, want an error that the chart has no files/dashboard.json", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all[corev1.ConfigMap](t, render(t, "fixedip-system", values, clusterPool), "ConfigMap") {
		if m.Labels["grafana_dashboard"] != "1" {
			continue
		}
		if got := strings.TrimSpace(m.Data["fixedip.json"]); got != strings.TrimSpace(string(want)) {
			t.Errorf("the ConfigMap %s does not contain files/dashboard.json", m.Name)
		}
		return
	}
	t.Error("no ConfigMap has the label grafana_dashboard")
}

// configMap returns the content of the ConfigMap fixedip-config.
func configMap(t *testing.T, objects installed) map[string]string {
	t.Helper()
	for _, m := range all[corev1.ConfigMap](t, objects, "ConfigMap") {
		if m.Name == "fixedip-config" {
			return m.Data
		}
	}
	t.Fatal("the chart has no ConfigMap fixedip-config")
	return nil
}
