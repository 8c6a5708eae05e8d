// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package manifests checks the files of the manifests for errors that an API server does not report, the tests and make targets
// that documents name, and the forms for issues. test/integration tests a running installation.
package manifests

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	psapi "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/hack/image"
	"fixedip.io/fixedip/ipam/core/configuration"
	"fixedip.io/fixedip/ipam/core/status"
)

var root = filepath.Join("..", "..")

// installed contains the objects that a kustomization or the chart installs.
type installed []*unstructured.Unstructured

func kustomize(t *testing.T, dir string) installed {
	t.Helper()
	objects, err := cluster.ReadManifests(dir)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// all returns the objects of a kind.
func all[T any](t *testing.T, objects installed, kind string) []T {
	t.Helper()
	var found []T
	for _, u := range objects {
		if u.GetKind() != kind {
			continue
		}
		var o T
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, &o, true); err != nil {
			t.Fatalf("decode %s %s: %v", kind, u.GetName(), err)
		}
		found = append(found, o)
	}
	return found
}

func deployments(t *testing.T, objects installed) []appsv1.Deployment {
	t.Helper()
	list := all[appsv1.Deployment](t, objects, "Deployment")
	if len(list) != 2 {
		t.Fatalf("got %d Deployments, want 2", len(list))
	}
	return list
}

// optional contains the chart, the examples, the manifests that only some clusters need, and the manifest with the Job that
// prepares an uninstallation. The kustomization does not contain them.
var optional = []string{"charts", "examples", "prometheus", "controller-scale-down-rbac.yaml", "guide-rbac.yaml", "networkpolicy.yaml", "scheduler-plugins-rbac.yaml", "uninstall.yaml"}

// TestNothingIsForgotten checks that the installation contains every manifest that is not optional.
func TestNothingIsForgotten(t *testing.T) {
	manifests := filepath.Join(root, "manifests")
	text, err := os.ReadFile(filepath.Join(manifests, "kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(manifests, func(file string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(manifests, file)
		switch {
		case err != nil:
			return err
		case slices.Contains(optional, name) && entry.IsDir():
			return filepath.SkipDir
		case !entry.IsDir() && name != "kustomization.yaml" && !slices.Contains(optional, name) && !strings.Contains(string(text), name):
			t.Errorf("manifest %s is not installed: kustomization.yaml does not contain it", name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestRolesAsWritten checks that the kustomization installs every object of the files *-rbac.yaml that are not optional.
// Kustomize may change only one part of the objects: it appends a hash to the name of the ConfigMap fixedip-config in
// ClusterRoles.
func TestRolesAsWritten(t *testing.T) {
	made := map[string]*unstructured.Unstructured{}
	for _, u := range kustomize(t, filepath.Join(root, "manifests")) {
		made[u.GetKind()+" "+u.GetNamespace()+"/"+u.GetName()] = u
	}
	files, err := filepath.Glob(filepath.Join(root, "manifests", "*-rbac.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		written, err := cluster.ReadManifests(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range written {
			if got := made[u.GetKind()+" "+u.GetNamespace()+"/"+u.GetName()]; got != nil {
				if got.GetKind() == "ClusterRole" {
					withoutHashes(t, got)
				}
				if diff := cmp.Diff(u.Object, got.Object); diff != "" {
					t.Errorf("object %s of %s (-want +got): %s", u.GetName(), file, diff)
				}
			} else if !slices.Contains(optional, filepath.Base(file)) {
				t.Errorf("object %s of %s is not installed", u.GetName(), file)
			}
		}
	}
}

// TestConfigurationIsFound checks that kubectl fixedip finds the configuration of an installation without a flag: by the
// labels and the volume of the controller's Deployment.
func TestConfigurationIsFound(t *testing.T) {
	for name, objects := range map[string]installed{"kustomization": kustomize(t, filepath.Join(root, "manifests")), "chart": render(t, "network", "", clusterPool)} {
		var controllers []appsv1.Deployment
		for _, d := range deployments(t, objects) {
			if labels.SelectorFromSet(status.LabelsOf(status.Controller)).Matches(labels.Set(d.Labels)) {
				controllers = append(controllers, d)
			}
		}
		var with []string
		for _, m := range all[corev1.ConfigMap](t, objects, "ConfigMap") {
			if m.Data["config.yaml"] != "" {
				with = append(with, m.Namespace+"/"+m.Name)
			}
		}
		if diff := cmp.Diff(with, status.ConfigMapsOf(controllers, nil)); diff != "" || len(controllers) != 1 || len(with) != 1 {
			t.Errorf("%s: got %d controllers and %d ConfigMaps with a configuration, want one of each; ConfigMaps with a configuration and those of the controllers (-want +got): %s", name, len(controllers), len(with), diff)
		}
	}
}

// TestImages checks that pods run the images of the Dockerfile with their entry points.
func TestImages(t *testing.T) {
	file, err := os.Open(filepath.Join(root, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	recipes, err := image.ReadDockerfile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range deployments(t, kustomize(t, filepath.Join(root, "manifests"))) {
		c := d.Spec.Template.Spec.Containers[0]
		name, _, _ := strings.Cut(c.Image, ":")
		if !slices.ContainsFunc(recipes, func(r image.Recipe) bool { return r.Name == name }) {
			t.Errorf("Deployment %s: the Dockerfile has no stage %s for the image", d.Name, name)
		}
		if c.Command != nil {
			t.Errorf("Deployment %s: got command %q, want none, so that the entry point of the image is used", d.Name, c.Command)
		}
	}
}

// TestPodSecurity checks that the pods meet the restricted standard except for the host network and its loopback address in
// probes, and that their root file system is read-only. Their namespace must allow the host network regardless of the default
// of the cluster.
func TestPodSecurity(t *testing.T) {
	objects := kustomize(t, filepath.Join(root, "manifests"))
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks())
	if err != nil {
		t.Fatal(err)
	}
	restricted := psapi.LevelVersion{Level: psapi.LevelRestricted, Version: psapi.LatestVersion()}
	var namespace corev1.Namespace
	for _, namespace = range all[corev1.Namespace](t, objects, "Namespace") {
		enforced, errs := psapi.PolicyToEvaluate(namespace.Labels, psapi.Policy{Enforce: restricted, Audit: restricted, Warn: restricted})
		if !enforced.FullyPrivileged() || len(errs) > 0 {
			t.Errorf("namespace %s: got policy %v with errors %v, want a privileged policy without errors", namespace.Name, enforced.String(), errs.ToAggregate())
		}
	}
	for _, d := range deployments(t, objects) {
		if d.Namespace != namespace.Name {
			t.Errorf("Deployment %s is in namespace %s, want %s", d.Name, d.Namespace, namespace.Name)
		}
		var refused []string
		for _, result := range evaluator.EvaluatePod(restricted, &d.Spec.Template.ObjectMeta, &d.Spec.Template.Spec) {
			if !result.Allowed {
				refused = append(refused, result.ForbiddenReason+": "+result.ForbiddenDetail)
			}
		}
		allowed := []string{
			"host namespaces: hostNetwork=true",
			fmt.Sprintf(`probe or lifecycle host: container %q uses probe or lifecycle host "127.0.0.1"`, d.Name),
		}
		if diff := cmp.Diff(allowed, refused); diff != "" {
			t.Errorf("Deployment %s: violations of the restricted standard (-want +got): %s", d.Name, diff)
		}
		if c := d.Spec.Template.Spec.Containers[0]; c.SecurityContext.ReadOnlyRootFilesystem == nil || !*c.SecurityContext.ReadOnlyRootFilesystem {
			t.Errorf("Deployment %s: readOnlyRootFilesystem is not true", d.Name)
		}
	}
}

// TestTolerations checks which taints the pods tolerate. They tolerate the taints of nodes that are not ready, have no pod
// network or are not initialized by the cloud provider, of control plane nodes and of nodes for critical add-ons. They do not
// tolerate the taints of nodes that are cordoned, lost, out of service, short of a resource or reserved for other pods.
func TestTolerations(t *testing.T) {
	taint := func(key string, effect corev1.TaintEffect) corev1.Taint {
		return corev1.Taint{Key: key, Effect: effect}
	}
	for _, c := range []struct {
		taint     corev1.Taint
		tolerated bool
	}{
		{taint(corev1.TaintNodeNotReady, corev1.TaintEffectNoSchedule), true},
		{taint(corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute), true},
		{taint(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule), true},
		{taint("node.cilium.io/agent-not-ready", corev1.TaintEffectNoSchedule), true},
		{taint("node.cilium.io/agent-not-ready", corev1.TaintEffectNoExecute), true},
		{taint("node.cloudprovider.kubernetes.io/uninitialized", corev1.TaintEffectNoSchedule), true},
		{taint("node-role.kubernetes.io/control-plane", corev1.TaintEffectNoSchedule), true},
		{taint("CriticalAddonsOnly", corev1.TaintEffectNoSchedule), true},
		{taint("CriticalAddonsOnly", corev1.TaintEffectNoExecute), true},
		{taint(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule), false},
		{taint(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute), false},
		{taint(corev1.TaintNodeOutOfService, corev1.TaintEffectNoExecute), false},
		{taint(corev1.TaintNodeDiskPressure, corev1.TaintEffectNoSchedule), false},
		{taint("example.com/dedicated", corev1.TaintEffectNoSchedule), false},
	} {
		for _, d := range deployments(t, kustomize(t, filepath.Join(root, "manifests"))) {
			got := corev1helpers.TolerationsTolerateTaint(d.Spec.Template.Spec.Tolerations, &c.taint)
			if got != c.tolerated {
				t.Errorf("Deployment %s tolerates taint %s: got %v, want %v", d.Name, c.taint.ToString(), got, c.tolerated)
			}
		}
	}
}

// TestPorts checks that no host port is used twice, and that each probe uses the name of a port.
func TestPorts(t *testing.T) {
	taken := map[int32]string{} // Key: the port. Value: the Deployment that uses it.
	for _, d := range deployments(t, kustomize(t, filepath.Join(root, "manifests"))) {
		c := d.Spec.Template.Spec.Containers[0]
		names := map[string]bool{}
		for _, p := range c.Ports {
			if other := taken[p.ContainerPort]; other != "" {
				t.Errorf("port %d is used by Deployment %s and by Deployment %s, want one user", p.ContainerPort, other, d.Name)
			}
			taken[p.ContainerPort], names[p.Name] = d.Name, true
		}
		for _, probe := range []*corev1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
			if !names[probe.HTTPGet.Port.String()] {
				t.Errorf("Deployment %s: the probe of path %s uses port %s, but no port of the container has that name", d.Name, probe.HTTPGet.Path, probe.HTTPGet.Port.String())
			}
		}
	}
}

// TestTolerationsHaveEffects checks that no toleration matches every effect of its taint. Otherwise the pods would also
// tolerate effects that a later version of Kubernetes adds.
func TestTolerationsHaveEffects(t *testing.T) {
	for _, d := range deployments(t, kustomize(t, filepath.Join(root, "manifests"))) {
		for _, toleration := range d.Spec.Template.Spec.Tolerations {
			if toleration.Effect == "" {
				t.Errorf("Deployment %s: the field effect of the toleration of %s is empty, which matches every effect", d.Name, toleration.Key)
			}
		}
	}
}

// TestProbes checks that the kubelet restarts a program only if the program has not answered for two minutes. The control
// plane may be busy, and a restart would add to its load. A probe waits longer than the default of one second for an answer.
func TestProbes(t *testing.T) {
	for _, d := range deployments(t, kustomize(t, filepath.Join(root, "manifests"))) {
		c := d.Spec.Template.Spec.Containers[0]
		for name, p := range map[string]*corev1.Probe{"startup": c.StartupProbe, "liveness": c.LivenessProbe} {
			if p.PeriodSeconds*p.FailureThreshold < 120 || p.TimeoutSeconds < 15 {
				t.Errorf("Deployment %s: the %s probe fails after %d times %d s, with %d s for each answer; want at least 120 s and 15 s", d.Name, name, p.FailureThreshold, p.PeriodSeconds, p.TimeoutSeconds)
			}
		}
		if c.ReadinessProbe.TimeoutSeconds < 5 {
			t.Errorf("Deployment %s: the readiness probe waits %d s for an answer, want at least 5 s", d.Name, c.ReadinessProbe.TimeoutSeconds)
		}
	}
}

// TestDisruption checks that each Deployment has one PodDisruptionBudget. A drain may evict ready pods only one at a
// time, but may always evict a pod that is not ready.
func TestDisruption(t *testing.T) {
	objects := kustomize(t, filepath.Join(root, "manifests"))
	budgets := all[policyv1.PodDisruptionBudget](t, objects, "PodDisruptionBudget")
	for _, d := range deployments(t, objects) {
		var found int
		for _, b := range budgets {
			selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
			if err != nil {
				t.Fatal(err)
			}
			if b.Namespace == d.Namespace && selector.Matches(labels.Set(d.Spec.Template.Labels)) {
				found++
				if b.Spec.MaxUnavailable == nil || b.Spec.MaxUnavailable.IntValue() != 1 || *b.Spec.UnhealthyPodEvictionPolicy != policyv1.AlwaysAllow {
					t.Errorf("Deployment %s: got PodDisruptionBudget %v, want maxUnavailable 1 and unhealthyPodEvictionPolicy AlwaysAllow", d.Name, b.Spec)
				}
			}
		}
		if found != 1 {
			t.Errorf("Deployment %s: got %d PodDisruptionBudgets, want 1", d.Name, found)
		}
	}
}

// TestDocumentedInstallation checks the installation in the documentation, as it is written and with the commented parts
// enabled: images come from the named registry, both programs read the shown file, and the commented parts set the address
// of the API server and one replica.
func TestDocumentedInstallation(t *testing.T) {
	files := documented(t, filepath.Join(root, "docs", "operate", "install.md"))
	comment := regexp.MustCompile("(?m)^# (- |  |replicas:)")
	for _, uncommented := range []bool{false, true} {
		replicas := int32(2)
		if uncommented {
			files["kustomization.yaml"] = comment.ReplaceAllString(files["kustomization.yaml"], "$1")
			replicas = 1
		}
		objects := kustomize(t, site(t, files))
		configMaps := map[string]corev1.ConfigMap{}
		for _, m := range all[corev1.ConfigMap](t, objects, "ConfigMap") {
			configMaps[m.Name] = m
		}
		for _, d := range deployments(t, objects) {
			c := d.Spec.Template.Spec.Containers[0]
			if got, want := c.Image, path.Join("registry.example.com", d.Name)+":v1.0.0"; got != want {
				t.Errorf("Deployment %s: got image %s, want %s", d.Name, got, want)
			}
			if *d.Spec.Replicas != replicas {
				t.Errorf("Deployment %s: got %d replicas, want %d", d.Name, *d.Spec.Replicas, replicas)
			}
			address := configMaps[c.EnvFrom[0].ConfigMapRef.Name].Data
			if configured := address["KUBERNETES_SERVICE_HOST"] != "" && address["KUBERNETES_SERVICE_PORT"] != ""; configured != uncommented {
				t.Errorf("Deployment %s: got the address %v of the API server; want both a host and a port: %t", d.Name, address, uncommented)
			}
			mounted := configMaps[d.Spec.Template.Spec.Volumes[0].ConfigMap.Name].Data
			if got := mounted["config.yaml"]; got != files["config.yaml"] {
				t.Errorf("Deployment %s: got config.yaml %q, want %q", d.Name, got, files["config.yaml"])
			}
			if _, err := configuration.Parse([]byte(mounted["config.yaml"]), nil); err != nil {
				t.Errorf("Deployment %s: parse config.yaml: %v", d.Name, err)
			}
			if mounted["scheduler.yaml"] == "" {
				t.Errorf("Deployment %s: the ConfigMap has no scheduler.yaml", d.Name)
			}
		}
	}
}

// site creates a folder with the files and with a link to this repository, and returns the path of the folder.
func site(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	clone, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(clone, filepath.Join(dir, "fixedip")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// documented returns the files shown in a document: each code block whose first line is a comment with only a file
// name that ends in .yaml. Key: the file name.
func documented(t *testing.T, file string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for i, block := range strings.Split(string(text), "```") {
		first, rest, _ := strings.Cut(block, "\n")
		comment, _, _ := strings.Cut(rest, "\n")
		if name, ok := strings.CutPrefix(comment, "# "); i%2 == 1 && first == "yaml" && ok && !strings.Contains(name, " ") && strings.HasSuffix(name, ".yaml") {
			files[name] = rest
		}
	}
	if files["kustomization.yaml"] == "" || files["config.yaml"] == "" {
		t.Fatalf("%s does not show both kustomization.yaml and config.yaml", file)
	}
	return files
}
