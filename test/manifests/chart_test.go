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
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/sets"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
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

// keyed returns the objects by kind, namespace and name, without what differs on purpose between the installations: the
// Namespace, which Helm creates; the ConfigMap with the limits of FixedIPs, which the administrator of a kustomization adds;
// hooks; the names and comments of the configuration; and the metadata of Helm.
func keyed(t *testing.T, objects installed) map[string]map[string]any {
	t.Helper()
	all := map[string]map[string]any{}
	for _, u := range objects {
		name, annotations := u.GetName(), u.GetAnnotations()
		if u.GetKind() == "Namespace" || name == "fixedip-pools" || annotations["helm.sh/hook"] != "" {
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
			// The text of config.yaml has comments in one of the two only.
			text, _, _ := unstructured.NestedString(u.Object, "data", "config.yaml")
			c, err := configuration.Parse([]byte(text))
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

// sameWords ignores how lines are broken: kustomize breaks those of long expressions differently.
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
// kustomization, with the images of the registry.
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
		"migration that is not allowed":              {`config: {failover: Migrate, subnets: {source: Node}}`, "config.failover is Migrate, but config.allowAddressMigration is false"},
		"half an API server":                         {`{config: {subnets: {source: Node}}, apiServer: {host: 192.0.2.1}}`, "apiServer needs both host and port"},
		"pool that is too small":                     {`config: {pools: {minFree: 1}}`, "at '/config/pools/minFree': minimum: got 1, want 2"},
		"misspelt selector":                          {`config: {adoption: {podSelector: {matchLables: {a: b}}}}`, "additional properties 'matchLables' not allowed"},
		"unknown size":                               {`size: huge`, "at '/size': value must be one of 'small', 'medium', 'large'"},
		"toleration of an unknown effect":            {`tolerations: [{key: a, effect: Never}]`, "at '/tolerations/0/effect'"},
		"misspelt resources":                         {`controller: {resources: {request: {cpu: 1}}}`, "additional properties 'request' not allowed"},
		"dashboard that is a name":                   {`monitoring: {dashboard: fixedip}`, "at '/monitoring/dashboard': got string, want boolean"},
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
		"requests by size, and explicit ones": {"size: large\nscheduler: {resources: {requests: {cpu: 3}}}", func(t *testing.T, objects installed) {
			for _, d := range deployments(t, objects) {
				requests := d.Spec.Template.Spec.Containers[0].Resources.Requests
				want := map[string]corev1.ResourceList{
					"fixedip-controller": sizeOf(t, "large", "controller"),
					"fixedip-scheduler":  {corev1.ResourceCPU: resource.MustParse("3")},
				}[d.Name]
				if !equality.Semantic.DeepEqual(requests, want) {
					t.Errorf("Deployment %s: got requests %v, want %v", d.Name, requests, want)
				}
			}
		}},
		"nodes and taints": {"agentNotReadyTaintKey: example.com/not-ready\ntolerations: [{key: dedicated, operator: Equal, value: system, effect: NoSchedule}]\nnodeSelector: {pool: system}", func(t *testing.T, objects installed) {
			for _, d := range deployments(t, objects) {
				spec := d.Spec.Template.Spec
				for _, taint := range []corev1.Taint{
					{Key: "example.com/not-ready", Effect: corev1.TaintEffectNoSchedule}, {Key: "example.com/not-ready", Effect: corev1.TaintEffectNoExecute},
					{Key: "dedicated", Value: "system", Effect: corev1.TaintEffectNoSchedule},
				} {
					if !corev1helpers.TolerationsTolerateTaint(spec.Tolerations, &taint) {
						t.Errorf("Deployment %s does not tolerate the taint %s", d.Name, taint.ToString())
					}
				}
				if other := (corev1.Taint{Key: "node.cilium.io/agent-not-ready", Effect: corev1.TaintEffectNoSchedule}); corev1helpers.TolerationsTolerateTaint(spec.Tolerations, &other) {
					t.Errorf("Deployment %s tolerates the default taint of Cilium, although another key is set", d.Name)
				}
				if want := map[string]string{"kubernetes.io/os": "linux", "pool": "system"}; !maps.Equal(spec.NodeSelector, want) {
					t.Errorf("Deployment %s: got node selector %v, want %v", d.Name, spec.NodeSelector, want)
				}
			}
		}},
		"MAC addresses": {`stickyMAC: true`, func(t *testing.T, objects installed) {
			if !grants(t, objects, "fixedip-scheduler", "patch", "", "pods") {
				t.Error("ClusterRole fixedip-scheduler does not grant the right to patch pods")
			}
		}},
		"no MAC addresses": {`{}`, func(t *testing.T, objects installed) {
			if grants(t, objects, "fixedip-scheduler", "patch", "", "pods") {
				t.Error("ClusterRole fixedip-scheduler grants the right to patch pods by default")
			}
		}},
		"metrics without authentication": {"metrics: {secure: false}\nmonitoring: {podMonitors: true}", func(t *testing.T, objects installed) {
			for _, d := range deployments(t, objects) {
				if slices.Contains(d.Spec.Template.Spec.Containers[0].Args, "--metrics-secure") {
					t.Errorf("Deployment %s serves secure metrics", d.Name)
				}
			}
			if grants(t, objects, "fixedip-controller", "create", "authentication.k8s.io", "tokenreviews") {
				t.Error("ClusterRole fixedip-controller grants the right to review tokens, which the controller does not need")
			}
			if got, want := schemes(t, objects), map[string]string{"fixedip-controller": "", "fixedip-scheduler": "https"}; !maps.Equal(got, want) {
				t.Errorf("schemes of the PodMonitors: got %v, want %v", got, want)
			}
		}},
		"secure metrics": {`monitoring: {podMonitors: true}`, func(t *testing.T, objects installed) {
			for _, right := range []string{"authentication.k8s.io/tokenreviews", "authorization.k8s.io/subjectaccessreviews"} {
				group, name, _ := strings.Cut(right, "/")
				if !grants(t, objects, "fixedip-controller", "create", group, name) {
					t.Errorf("ClusterRole fixedip-controller does not grant the right to create %s", right)
				}
			}
			if got, want := schemes(t, objects), map[string]string{"fixedip-controller": "https", "fixedip-scheduler": "https"}; !maps.Equal(got, want) {
				t.Errorf("schemes of the PodMonitors: got %v, want %v", got, want)
			}
			for _, s := range all[corev1.Secret](t, objects, "Secret") {
				if s.Type == corev1.SecretTypeServiceAccountToken && s.Name == "fixedip-metrics-reader" && s.Annotations[corev1.ServiceAccountNameKey] == s.Name {
					return
				}
			}
			t.Error("the chart has no Secret with the token of the ServiceAccount fixedip-metrics-reader")
		}},
		"no hook": {`uninstall: {hook: false}`, func(t *testing.T, objects installed) {
			for _, u := range objects {
				if u.GetAnnotations()["helm.sh/hook"] != "" {
					t.Errorf("%s %s is a hook", u.GetKind(), u.GetName())
				}
			}
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
	if c, err := configuration.Parse([]byte(configMap(t, objects)["config.yaml"])); err != nil || c.Subnets.Source != configuration.FromNode {
		t.Errorf("config.yaml: got subnets.source %q (error %v), want Node", c.Subnets.Source, err)
	}
	for _, m := range all[corev1.ConfigMap](t, objects, "ConfigMap") {
		if m.Name == "fixedip-pools" {
			t.Error("the chart has the ConfigMap fixedip-pools without a pool, so that every FixedIP of a user is refused")
		}
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

// TestChartMetadata checks that the metadata of the chart for Artifact Hub lists the CustomResourceDefinitions of the chart, and that
// its example of a FixedIP is valid.
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
		t.Errorf("got version %s and appVersion %s, want the same with v", metadata.Version, metadata.AppVersion)
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

// TestChartLabels checks that each object of the chart has the labels that Kubernetes recommends, and that pods have those that
// do not name the chart, so that a new chart with the same program restarts no pod.
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
			t.Errorf("the pods of Deployment %s have the labels %v, want its component and no chart", d.Name, labels)
		}
	}
}

// TestChartUninstall checks the hook that runs before the chart is uninstalled. Its Job has an end, its pod is not selected by a
// Deployment or PodDisruptionBudget, and it has no right beyond those of the controller but to scale the controller.
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
	if limit := job.Spec.ActiveDeadlineSeconds; limit == nil || *limit >= 300 {
		t.Errorf("got a deadline of %v s, want less than the 300 s for which helm uninstall waits", limit)
	}
	if app := job.Spec.Template.Labels["app"]; app != "fixedip-uninstall" {
		t.Errorf("got a pod with the label app=%s, want app=fixedip-uninstall, which nothing selects", app)
	}
	if c := job.Spec.Template.Spec.Containers[0]; !slices.Equal(c.Args, []string{"uninstall"}) || job.Spec.Template.Spec.ServiceAccountName != "fixedip-controller" {
		t.Errorf("got arguments %q and ServiceAccount %s, want uninstall and fixedip-controller", c.Args, job.Spec.Template.Spec.ServiceAccountName)
	}
	want := []rbacv1.PolicyRule{{APIGroups: []string{"apps"}, Resources: []string{"deployments/scale"}, ResourceNames: []string{"fixedip-controller"}, Verbs: []string{"get", "update"}}}
	for _, r := range all[rbacv1.Role](t, objects, "Role") {
		if r.Name != "fixedip-uninstall" {
			continue
		}
		if diff := cmp.Diff(want, r.Rules); diff != "" {
			t.Errorf("rules of the hook (-want +got):\n%s", diff)
		}
	}
}

// TestChartDashboard checks that the ConfigMap of the dashboard contains the dashboard, and has the label that Grafana's
// sidecar selects. Without the file of the dashboard, the chart refuses the value.
func TestChartDashboard(t *testing.T) {
	const values = `monitoring: {dashboard: true}`
	want, err := os.ReadFile(filepath.Join(chart, "files", "dashboard.json"))
	if os.IsNotExist(err) {
		if _, err := helm(values, "template", "fixedip", chart, "--values", "-", clusterPool); err == nil || !strings.Contains(err.Error(), "the chart has no files/dashboard.json") {
			t.Errorf("got %v, want an error about the file that is missing", err)
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

// schemes returns the scheme of each PodMonitor, and checks that https comes with credentials. Key: the name of the PodMonitor.
func schemes(t *testing.T, objects installed) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, u := range objects {
		if u.GetKind() != "PodMonitor" {
			continue
		}
		endpoints, _, _ := unstructured.NestedSlice(u.Object, "spec", "podMetricsEndpoints")
		endpoint := endpoints[0].(map[string]any)
		found[u.GetName()], _ = endpoint["scheme"].(string)
		secret, _, _ := unstructured.NestedString(endpoint, "authorization", "credentials", "name")
		if (found[u.GetName()] == "https") != (secret == "fixedip-metrics-reader") {
			t.Errorf("PodMonitor %s: got scheme %q and credentials of %q, want https with those of fixedip-metrics-reader, or neither", u.GetName(), found[u.GetName()], secret)
		}
	}
	return found
}

// sizeOf returns the requests of a program (controller or scheduler) for a size of the cluster.
func sizeOf(t *testing.T, size, program string) corev1.ResourceList {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(chart, "files", "sizes.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var sizes map[string]map[string]corev1.ResourceRequirements
	if err := yaml.UnmarshalStrict(text, &sizes); err != nil {
		t.Fatal(err)
	}
	if len(sizes[size][program].Requests) == 0 {
		t.Fatalf("files/sizes.yaml has no requests of %s for the size %s", program, size)
	}
	return sizes[size][program].Requests
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
