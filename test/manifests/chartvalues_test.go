// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/sets"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"sigs.k8s.io/yaml"
)

// TestChartRefuses checks that Helm refuses invalid values of the chart with an error that names the field.
func TestChartRefuses(t *testing.T) {
	for name, c := range map[string]struct{ values, want string }{
		"no cluster pool":                            {`{}`, "config.subnets.clusterPools is empty: write the pod CIDR of the cluster"},
		"misspelled setting":                         {`config: {subnets: {clusterPool: []}}`, "at '/config/subnets': additional properties 'clusterPool' not allowed"},
		"misspelled value":                           {`controler: {}`, "additional properties 'controler' not allowed"},
		"unknown policy":                             {`config: {failover: Never}`, "at '/config/failover': value must be one of 'Wait', 'Migrate', 'Reassign'"},
		"no replica":                                 {`scheduler: {replicas: 0}`, "at '/scheduler/replicas': minimum: got 0, want 1"},
		"a grace period without a unit":              {`config: {subnets: {orphanedGracePeriod: "30"}}`, "at '/config/subnets/orphanedGracePeriod'"},
		"cluster pools beside subnets of Kubernetes": {`config: {subnets: {source: Node, clusterPools: [{cidr: 10.240.0.0/16}]}}`, "config.subnets.clusterPools is not empty although config.subnets.source is Node"},
		"migration that is not allowed":              {`config: {failover: Migrate, allowAddressMigration: false, subnets: {source: Node}}`, "config.failover is Migrate, but config.allowAddressMigration is false"},
		"ConfigMap of Cilium without a namespace":    {`{config: {subnets: {source: Node}}, ciliumConfig: cilium-config}`, "at '/ciliumConfig'"},
		"API server without a port":                  {`{config: {subnets: {source: Node}}, apiServer: {host: 192.0.2.1}}`, "apiServer needs both host and port"},
		"too few dynamic addresses":                  {`config: {pools: {minFree: 1}}`, "at '/config/pools/minFree': minimum: got 1, want 2"},
		"misspelled selector":                        {`config: {adoption: {podSelector: {matchLables: {a: b}}}}`, "additional properties 'matchLables' not allowed"},
		"unknown size":                               {`size: huge`, "at '/size': value must be one of 'small', 'medium', 'large'"},
		"toleration of an unknown effect":            {`tolerations: [{key: a, effect: Never}]`, "at '/tolerations/0/effect'"},
		"misspelled resources":                       {`controller: {resources: {request: {cpu: 1}}}`, "additional properties 'request' not allowed"},
		"dashboard that is a name":                   {`monitoring: {dashboard: fixedip}`, "at '/monitoring/dashboard': got string, want boolean"},
		"workload without an identity":               {`config: {workloads: [{apiGroup: apps, kind: Deployment}]}`, "at '/config/workloads/0': missing property 'identity'"},
	} {
		if _, err := helm(c.values, "template", "fixedip", chart, "--values", "-"); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want one that contains %q", name, err, c.want)
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
			if !grants(t, objects, "fixedip-controller", "watch", "apps", "replicasets") {
				t.Error("ClusterRole fixedip-controller does not grant the right to watch ReplicaSets, which name the Deployments of pods")
			}
		}},
		"Cilium in another namespace": {`ciliumConfig: cilium/cilium-settings`, func(t *testing.T, objects installed) {
			if text := configMap(t, objects)["scheduler.yaml"]; !strings.Contains(text, "\n      ciliumConfig: cilium/cilium-settings\n") {
				t.Errorf("scheduler.yaml lacks ciliumConfig:\n%s", text)
			}
			for _, d := range deployments(t, objects) {
				if args := d.Spec.Template.Spec.Containers[0].Args; d.Name == "fixedip-controller" && !slices.Contains(args, "--cilium-config=cilium/cilium-settings") {
					t.Errorf("Deployment %s: got arguments %q, want --cilium-config", d.Name, args)
				}
			}
			readers := sets.New[string]()
			for _, r := range all[rbacv1.Role](t, objects, "Role") {
				for _, rule := range r.Rules {
					if r.Namespace == "cilium" && slices.Equal(rule.ResourceNames, []string{"cilium-settings"}) && slices.Equal(rule.Verbs, []string{"get"}) {
						readers.Insert(r.Name)
					}
				}
			}
			if readers.Len() != 2 {
				t.Errorf("the Roles %v allow reading the ConfigMap cilium/cilium-settings, want one Role for each program", sets.List(readers))
			}
			bound := sets.New[string]()
			for _, b := range all[rbacv1.RoleBinding](t, objects, "RoleBinding") {
				if b.Namespace == "cilium" {
					bound.Insert(b.RoleRef.Name)
				}
			}
			if !bound.Equal(readers) {
				t.Errorf("RoleBindings of the namespace cilium refer to the Roles %v, want those that allow reading the ConfigMap: %v", sets.List(bound), sets.List(readers))
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
		"values that YAML can misread": {"config: {schedulerNames: [\"123\"]}\nrbac: {workloadResources: [{apiGroup: \"*\", resource: \"*\"}]}\nscheduler: {burst: 1000000, qps: 5e5}", func(t *testing.T, objects installed) {
			text := configMap(t, objects)["scheduler.yaml"]
			var file struct {
				ClientConnection struct{ QPS, Burst int }
				Profiles         []struct{ SchedulerName string }
			}
			if err := yaml.Unmarshal([]byte(text), &file); err != nil || file.Profiles[0].SchedulerName != "123" || file.ClientConnection.Burst != 1000000 || file.ClientConnection.QPS != 500000 {
				t.Errorf("scheduler.yaml: got %+v (error %v), want profile 123, burst 1000000 and qps 500000", file, err)
			}
			if !grants(t, objects, "fixedip-scheduler", "watch", "*", "*") {
				t.Error("ClusterRole fixedip-scheduler does not grant the configured right")
			}
		}},
		"no protection from autoscalers keeps the right": {`config: {protectNodesFrom: []}`, func(t *testing.T, objects installed) {
			if !grants(t, objects, "fixedip-controller", "patch", "", "nodes") {
				t.Error("ClusterRole fixedip-controller does not grant the right to patch nodes, so the controller cannot remove its annotations")
			}
		}},
		"without the host network": {`hostNetwork: false`, func(t *testing.T, objects installed) {
			for _, d := range deployments(t, objects) {
				c := d.Spec.Template.Spec.Containers[0]
				if d.Spec.Template.Spec.HostNetwork || c.LivenessProbe.HTTPGet.Host != "" || slices.ContainsFunc(c.Args, func(a string) bool { return strings.Contains(a, "127.0.0.1") }) {
					t.Errorf("Deployment %s: got host network %v, probe %v and arguments %q, want no host network, and a probe and arguments without the loopback address", d.Name, d.Spec.Template.Spec.HostNetwork, c.LivenessProbe, c.Args)
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
				if job := all[batchv1.Job](t, objects, "Job")[0]; !slices.Contains(job.Spec.Template.Spec.Containers[0].Args, "--logging-format=json") {
					t.Errorf("Job %s: got arguments %q, want JSON logs", job.Name, job.Spec.Template.Spec.Containers[0].Args)
				}
				if !slices.Contains(c.Args, "--logging-format=json") || d.Name == "fixedip-controller" && (!slices.Contains(c.Args, "--v=3") || *d.Spec.Replicas != 1) {
					t.Errorf("Deployment %s: got %d replicas with arguments %q, want --logging-format=json and, for the controller, --v=3 and 1 replica", d.Name, *d.Spec.Replicas, c.Args)
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
					t.Errorf("Deployment %s has the argument --metrics-secure, want metrics without authentication", d.Name)
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
					t.Errorf("%s %s is a hook, want none", u.GetKind(), u.GetName())
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
				t.Errorf("objects with the label release=prometheus: got %v, want %v", sets.List(found), sets.List(want))
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

// schemes returns the scheme of each PodMonitor; empty if it has none. Key: the name of the PodMonitor. schemes also checks
// that a PodMonitor has credentials if its scheme is https, and none otherwise.
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
		want := ""
		if found[u.GetName()] == "https" {
			want = "fixedip-metrics-reader"
		}
		if secret != want {
			t.Errorf("PodMonitor %s: got scheme %q and credentials of %q, want those of %q", u.GetName(), found[u.GetName()], secret, want)
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

// grants reports whether a rule of the ClusterRole role allows the verb for the resource of the API group.
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
