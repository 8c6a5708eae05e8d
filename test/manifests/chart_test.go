// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/yaml"

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

// render returns the objects of the chart with the given values in a namespace.
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

// TestChartIsTheKustomization checks that the chart, with the settings of the kustomization, installs the same objects as
// the kustomization. Exceptions are the Namespace, which Helm creates, the ConfigMap with the limits of FixedIPs, which the
// administrator of a kustomization adds, and the metadata with which Helm updates the pods and keeps the
// CustomResourceDefinitions.
func TestChartIsTheKustomization(t *testing.T) {
	keyed := func(objects installed) map[string]map[string]any {
		all := map[string]map[string]any{}
		for _, u := range objects {
			name := u.GetName()
			switch {
			case u.GetKind() == "Namespace":
				continue
			case u.GetKind() == "ConfigMap":
				name, _, _ = strings.Cut(name, "-config-")
				name = strings.TrimSuffix(name, "-config") + "-config"
				u.SetLabels(nil)
				// The text of config.yaml has comments in one of the two only.
				text, _, _ := unstructured.NestedString(u.Object, "data", "config.yaml")
				c, err := configuration.Parse([]byte(text), nil)
				if err != nil {
					t.Fatalf("config.yaml: %v", err)
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
			case u.GetKind() == "CustomResourceDefinition":
				u.SetLabels(nil)
				annotations := u.GetAnnotations()
				delete(annotations, "helm.sh/resource-policy")
				u.SetAnnotations(annotations)
			case u.GetKind() == "Deployment":
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
		"config": config, "image": map[string]any{"tag": "latest"},
		"rbac": map[string]any{"workloadResources": []any{map[string]any{"apiGroup": "apps", "resource": "deployments"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	want, got := keyed(kustomize(t, filepath.Join(root, "manifests"))), keyed(render(t, "fixedip-system", string(values)))
	// Kustomize breaks the lines of long expressions differently.
	words := cmp.Comparer(func(a, b string) bool { return slices.Equal(strings.Fields(a), strings.Fields(b)) })
	if diff := cmp.Diff(want, got, words); diff != "" {
		t.Errorf("objects of the kustomization (-) and of the chart (+):\n%s", diff)
	}
}

// TestChartRefuses checks that the error for an invalid value names the field, and the value or the allowed values.
func TestChartRefuses(t *testing.T) {
	for name, c := range map[string]struct{ values, want string }{
		"no cluster pool":               {`{}`, "config.subnets.clusterPools is empty: write the pod CIDR of the cluster"},
		"misspelt setting":              {`config: {subnets: {clusterPool: []}}`, "at '/config/subnets': additional properties 'clusterPool' not allowed"},
		"misspelt value":                {`controler: {}`, "additional properties 'controler' not allowed"},
		"unknown policy":                {`config: {failover: Never}`, "at '/config/failover': value must be one of 'Wait', 'Migrate', 'Reassign'"},
		"no replica":                    {`scheduler: {replicas: 0}`, "at '/scheduler/replicas': minimum: got 0, want 1"},
		"a grace period without a unit": {`config: {subnets: {orphanedGracePeriod: "30"}}`, "at '/config/subnets/orphanedGracePeriod'"},
		"cluster pools beside subnets of Kubernetes": {`config: {subnets: {source: Node, clusterPools: [{cidr: 10.240.0.0/16}]}}`, "config.subnets.clusterPools is not empty although config.subnets.source is Node"},
		"migration that is not allowed":              {`config: {failover: Migrate, allowAddressMigration: false, subnets: {source: Node}}`, "config.failover is Migrate, but config.allowAddressMigration is false"},
		"half an API server":                         {`{config: {subnets: {source: Node}}, apiServer: {host: 192.0.2.1}}`, "apiServer needs both host and port"},
		"pool that is too small":                     {`config: {pools: {minFree: 1}}`, "at '/config/pools/minFree': minimum: got 1, want 2"},
		"misspelt selector":                          {`config: {adoption: {podSelector: {matchLables: {a: b}}}}`, "additional properties 'matchLables' not allowed"},
		"workload without an identity":               {`config: {workloads: [{apiGroup: apps, kind: Deployment}]}`, "at '/config/workloads/0': missing property 'identity'"},
	} {
		if _, err := helm(c.values, "template", "fixedip", chart, "--values", "-"); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error that contains %q", name, err, c.want)
		}
	}
}

// TestChartValues checks how single values change the objects of the chart.
func TestChartValues(t *testing.T) {
	for name, c := range map[string]struct {
		values string
		check  func(t *testing.T, objects installed)
	}{
		"kinds of workloads add rights": {`config: {workloads: [{apiGroup: apps, kind: Deployment, identity: Slot}, {apiGroup: db.example.com, kind: Cluster, identity: PodName}]}`, func(t *testing.T, objects installed) {
			for _, role := range []string{"fixedip-controller", "fixedip-scheduler"} {
				for _, resource := range []string{"apps/deployments", "db.example.com/clusters"} {
					group, plural, _ := strings.Cut(resource, "/")
					if !grants(t, objects, role, "watch", group, plural) {
						t.Errorf("ClusterRole %s does not grant the right to watch %s", role, resource)
					}
				}
			}
		}},
		"protection from autoscalers adds a right": {`config: {protectNodesFrom: [karpenter]}`, func(t *testing.T, objects installed) {
			if !grants(t, objects, "fixedip-controller", "patch", "", "nodes") {
				t.Error("ClusterRole fixedip-controller does not grant the right to patch nodes")
			}
		}},
		"profiles of the scheduler": {`config: {schedulerNames: [one, two]}`, func(t *testing.T, objects installed) {
			text := configMap(t, objects)["scheduler.yaml"]
			if !strings.Contains(text, `schedulerName: "one"`) || !strings.Contains(text, `schedulerName: "two"`) {
				t.Errorf("scheduler.yaml lacks profile one or profile two:\n%s", text)
			}
		}},
		"unusual texts": {"config: {schedulerNames: [\"123\"]}\nrbac: {workloadResources: [{apiGroup: \"*\", resource: \"*\"}]}\nscheduler: {burst: 1000000, qps: 5e5}", func(t *testing.T, objects installed) {
			text := configMap(t, objects)["scheduler.yaml"]
			var file struct {
				ClientConnection struct{ QPS, Burst int }
				Profiles         []struct{ SchedulerName string }
			}
			if err := yaml.Unmarshal([]byte(text), &file); err != nil || file.Profiles[0].SchedulerName != "123" || file.ClientConnection.Burst != 1000000 {
				t.Errorf("scheduler.yaml: got %+v (error %v), want profile 123 and burst 1000000", file, err)
			}
			if !grants(t, objects, "fixedip-scheduler", "watch", "*", "*") {
				t.Error("ClusterRole fixedip-scheduler does not grant the configured right")
			}
		}},
		"protection from autoscalers that ends keeps the right": {`config: {protectNodesFrom: []}`, func(t *testing.T, objects installed) {
			if !grants(t, objects, "fixedip-controller", "patch", "", "nodes") {
				t.Error("ClusterRole fixedip-controller does not grant the right to patch nodes, so the controller cannot remove its annotations")
			}
		}},
		"without the host network": {`hostNetwork: false`, func(t *testing.T, objects installed) {
			for _, d := range deployments(t, objects) {
				c := d.Spec.Template.Spec.Containers[0]
				if d.Spec.Template.Spec.HostNetwork || c.LivenessProbe.HTTPGet.Host != "" || slices.ContainsFunc(c.Args, func(a string) bool { return strings.Contains(a, "127.0.0.1") }) {
					t.Errorf("Deployment %s: got host network %v, probe %v and arguments %q, want a program that the kubelet reaches in its own network", d.Name, d.Spec.Template.Spec.HostNetwork, c.LivenessProbe, c.Args)
				}
			}
		}},
		"no aggregation": {`rbac: {aggregate: false}`, func(t *testing.T, objects installed) {
			for _, r := range all[rbacv1.ClusterRole](t, objects, "ClusterRole") {
				for label := range r.Labels {
					if strings.HasPrefix(label, "rbac.authorization.k8s.io/aggregate-to-") {
						t.Errorf("ClusterRole %s has the label %s, want none", r.Name, label)
					}
				}
			}
		}},
		"logs, arguments and labels": {"logFormat: json\npodLabels: {team: net}\ncontroller: {args: [--v=3], replicas: 1}\nimage: {registry: registry.example.com/fixedip, tag: v9, pullSecrets: [{name: key}]}", func(t *testing.T, objects installed) {
			for _, d := range deployments(t, objects) {
				c := d.Spec.Template.Spec.Containers[0]
				if !slices.Contains(c.Args, "--logging-format=json") || d.Name == "fixedip-controller" && (!slices.Contains(c.Args, "--v=3") || *d.Spec.Replicas != 1) {
					t.Errorf("Deployment %s: got %d replicas with arguments %q", d.Name, *d.Spec.Replicas, c.Args)
				}
				if want := "registry.example.com/fixedip/" + d.Name + ":v9"; c.Image != want || d.Spec.Template.Labels["team"] != "net" || d.Spec.Template.Spec.ImagePullSecrets[0].Name != "key" {
					t.Errorf("Deployment %s: got image %s, labels %v and pull secrets %v, want image %s, the label team=net and the secret key", d.Name, c.Image, d.Spec.Template.Labels, d.Spec.Template.Spec.ImagePullSecrets, want)
				}
			}
		}},
		"the API server without its Service": {`apiServer: {host: 192.0.2.1, port: 6443}`, func(t *testing.T, objects installed) {
			for _, m := range all[corev1.ConfigMap](t, objects, "ConfigMap") {
				if m.Name == "fixedip-api-server" && m.Data["KUBERNETES_SERVICE_HOST"] == "192.0.2.1" && m.Data["KUBERNETES_SERVICE_PORT"] == "6443" {
					return
				}
			}
			t.Error("no ConfigMap fixedip-api-server has the address of the API server")
		}},
		"monitoring": {`monitoring: {podMonitors: true, rules: true, labels: {release: prometheus}}`, func(t *testing.T, objects installed) {
			found := sets.New[string]()
			for _, u := range objects {
				if u.GroupVersionKind().Group == "monitoring.coreos.com" && u.GetLabels()["release"] == "prometheus" {
					found.Insert(u.GetKind() + " " + u.GetName())
				}
			}
			if want := sets.New("PodMonitor fixedip-controller", "PodMonitor fixedip-scheduler", "PrometheusRule fixedip"); !found.Equal(want) {
				t.Errorf("got %v, want %v", sets.List(found), sets.List(want))
			}
		}},
		"no admission policies and definitions": {"admission: {annotations: false, addresses: false}\ncrds: {install: false}", func(t *testing.T, objects installed) {
			for _, u := range objects {
				if u.GetKind() == "CustomResourceDefinition" || u.GetKind() == "ValidatingAdmissionPolicy" && u.GetName() != "definitions.fixedip.io" {
					t.Errorf("got %s %s, want none", u.GetKind(), u.GetName())
				}
			}
		}},
	} {
		t.Run(name, func(t *testing.T) { c.check(t, render(t, "another", c.values, clusterPool)) })
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
			t.Errorf("%s %s is in namespace %s, want network", u.GetKind(), u.GetName(), ns)
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

// grants reports whether a ClusterRole has a rule with a right.
func grants(t *testing.T, objects installed, role, verb, group, resource string) bool {
	t.Helper()
	for _, r := range all[rbacv1.ClusterRole](t, objects, "ClusterRole") {
		if r.Name == role && slices.ContainsFunc(r.Rules, func(rule rbacv1.PolicyRule) bool {
			return slices.Contains(rule.Verbs, verb) && slices.Contains(rule.APIGroups, group) && slices.Contains(rule.Resources, resource)
		}) {
			return true
		}
	}
	return false
}
