// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// deployed creates the objects of an installation whose programs the test runs as processes: the Deployments, whose pods run
// on rack-7 and do nothing, their ConfigMap, and the ConfigMap and the DaemonSet of Cilium.
func (e *env) deployed() {
	e.t.Helper()
	const system = "fixedip-system"
	e.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "fixedip-config"}, Data: map[string]string{
		"config.yaml":    "apiVersion: config.fixedip.io/v1alpha1\nkind: FixedIPConfiguration\nsubnets: {clusterPools: [{cidr: 10.240.0.0/16}]}\n",
		"scheduler.yaml": "leaderElection: {leaderElect: false}\n",
	}})
	for _, name := range []string{"fixedip-controller", "fixedip-scheduler"} {
		labels := map[string]string{"app": name, "app.kubernetes.io/name": "fixedip", "app.kubernetes.io/component": strings.TrimPrefix(name, "fixedip-")}
		e.create(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name, Labels: labels}, Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](1), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				NodeName: "rack-7", Containers: []corev1.Container{{Name: name, Image: "registry.example.com/" + name + ":v0.1.0", Env: []corev1.EnvVar{{Name: "TOKEN", Value: "hunter2"}}}},
				Volumes: []corev1.Volume{{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
					LocalObjectReference: corev1.LocalObjectReference{Name: "fixedip-config"},
				}}}},
			}},
		}})
	}
	agent := map[string]string{"k8s-app": "cilium"}
	e.create(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "cilium-config"}, Data: map[string]string{"ipam": "crd", "routing-mode": "native"}},
		&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "cilium", Labels: agent}, Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: agent},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: agent}, Spec: corev1.PodSpec{
				NodeSelector: map[string]string{"no": "node"}, Containers: []corev1.Container{{Name: "cilium-agent", Image: "cilium:v1.19.1"}},
			}},
		}})
}

// exits runs the plugin as a user and checks its exit code and that its output contains the texts. If user is empty, the
// plugin has all rights. Sequences of white space in the output count as one space.
func (e *env) exits(user string, code int, args []string, texts ...string) {
	e.t.Helper()
	out, err := e.kubectlAs(user, args...)
	got := 0
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		e.t.Fatal(err)
	}
	if got != code {
		e.t.Errorf("kubectl fixedip %s: exit code %d, want %d; output:\n%s", strings.Join(args, " "), got, code, out)
	}
	plain := strings.Join(strings.Fields(out), " ")
	for _, text := range texts {
		if !strings.Contains(plain, text) {
			e.t.Errorf("the output of kubectl fixedip %s does not contain %q:\n%s", strings.Join(args, " "), text, out)
		}
	}
}

// TestKubectlStatus checks the commands status, map, report and version. status reports missing objects, objects that the
// user may not read, a healthy installation, and programs with different configurations. report removes names, addresses and
// secrets.
func TestKubectlStatus(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: []string{"rack-7"}, controllerArgs: defaultPool})
	e.bindViewer()
	e.create(statefulSet("web", 1))
	web0 := e.awaitRunning(nil, "web-0")["web-0"].Address

	e.exits("", 1, []string{"status"}, "! There is no Deployment of fixedip-controller. what helps: install fixedip", "! There is no ConfigMap kube-system/cilium-config.", "FixedIPs: 1 of 1 ready (InUse 1)")
	e.exits(viewer, 2, []string{"status"}, "fixedip-controller: not readable", "Pools: nodes: 1; IPv4: ", "? Deployments could not be read: ", "No problems in the objects that could be read.")
	e.deployed()
	e.exits("", 0, []string{"status", "--wait=1m"}, "fixedip-controller: 1 of 1 ready, version v0.1.0 (registry.example.com/fixedip-controller:v0.1.0), leader ",
		"fixedip-scheduler: 1 of 1 ready, version v0.1.0", "Configuration: same, hash ", "Cilium: IPAM mode crd, routing mode native; 0 of 0 agents ready, version v1.19.1", "Healthy.")
	e.exits("", 0, []string{"status", "-o=json"}, `"healthy": true`, `"problems": []`)
	e.exits("", 0, []string{"version"}, "fixedip-controller: v0.1.0", "Cilium: v1.19.1", "Kubernetes: v1.")

	e.checkOutput([]string{"map"}, "rack-7 10.240.", "F fixed address, in use", ". free")
	e.checkOutput([]string{"map", "rack-7", "--html"}, `title="`+web0+`: fixed address, in use: default/web-0, workload default/StatefulSet/web"`)
	e.exits(viewer, 2, []string{"map", "node-9"}, `CiliumNode "node-9" does not exist`)

	archive := filepath.Join(t.TempDir(), "report.tar.gz")
	e.exits("", 0, []string{"report", "--file=" + archive}, "The report is in "+archive)
	files := e.unpacked(archive)
	for _, name := range []string{"status.txt", "check.yaml", "version.yaml", "events.txt", "objects/fixedips.yaml", "objects/ciliumnodes.yaml", "objects/deployments.yaml"} {
		if files[name] == "" {
			t.Errorf("the report has no file %s, or it is empty; it has %v and the errors %q", name, slices.Sorted(maps.Keys(files)), files["errors.txt"])
		}
	}
	for name, content := range files {
		for _, secret := range []string{web0, "web-0", "rack-7", "hunter2", "registry.example.com"} {
			if name != "README.txt" && strings.Contains(content, secret) {
				t.Errorf("file %s of the report contains %q, want it removed or replaced:\n%s", name, secret, content)
			}
		}
	}
	e.exits("", 2, []string{"report", "--file=" + archive}, "file exists")

	// The configuration of one program changes.
	other := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "fixedip-system", Name: "other"}, Data: map[string]string{
		"config.yaml": "apiVersion: config.fixedip.io/v1alpha1\nkind: FixedIPConfiguration\nsubnets: {clusterPools: [{cidr: 10.241.0.0/16}]}\n",
	}}
	e.create(other)
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "fixedip-system", Name: "fixedip-controller"}}
	e.must(e.api.Patch(within(t), d, client.RawPatch("application/json-patch+json", []byte(`[{"op":"replace","path":"/spec/template/spec/volumes/0/configMap/name","value":"other"}]`))))
	e.exits("", 1, []string{"status"}, "Configuration: differs", "! The programs have different configurations. what helps: let both Deployments mount one ConfigMap")
}

// unpacked returns the contents of the files in an archive. Key: the path of the file below the top folder of the archive.
func (e *env) unpacked(path string) map[string]string {
	e.t.Helper()
	file, err := os.Open(path)
	e.must(err)
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	e.must(err)
	files := map[string]string{}
	for archive := tar.NewReader(unzipped); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		e.must(err)
		content, err := io.ReadAll(archive)
		e.must(err)
		_, name, _ := strings.Cut(header.Name, "/")
		files[name] = string(content)
	}
}
