// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/hack/image"
	"fixedip.io/fixedip/hack/realcluster"
	"fixedip.io/fixedip/hack/realcluster/layout"
	"fixedip.io/fixedip/test/gen"
)

const system = "fixedip-system"

var programs = []string{"fixedip-controller", "fixedip-scheduler"}

// TestInstalledAsPods checks that fixedip needs only the images of the Dockerfile and the manifests, on nodes that do
// not become ready without fixedip. The pods of fixedip use only their service account token. They run without root,
// without capabilities and under seccomp, and reach the API server at its own address. The pods of a StatefulSet have
// the same addresses whenever they are replaced: while fixedip runs, after all processes of fixedip were killed, and
// after an update of fixedip.
func TestInstalledAsPods(t *testing.T) {
	i := installAsPods(t)
	for _, name := range programs {
		i.rolledOut(name)
	}
	for _, name := range programs {
		pids := i.processes(name)
		if len(pids) != 2 {
			t.Errorf("got %d processes of %s, want 2, one on each node", len(pids), name)
		}
		for _, pid := range pids {
			if diff := cmp.Diff(unprivileged, status(t, pid)); diff != "" {
				t.Errorf("kernel status of %s (-want +got): %s", name, diff)
			}
			environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
			i.must(err)
			if want := "KUBERNETES_SERVICE_HOST=" + i.server; !slices.Contains(strings.Split(string(environment), "\x00"), want) {
				t.Errorf("the environment of %s does not contain %s: %q", name, want, environment)
			}
		}
	}

	i.createWeb()
	before := i.web(nil)
	i.deletePods(before)
	after := i.web(before)

	t.Log("all processes of fixedip are killed")
	for _, name := range programs {
		for _, pid := range i.processes(name) {
			process, err := os.FindProcess(pid)
			i.must(err)
			i.must(process.Kill())
		}
	}
	i.deletePods(after)
	after = i.web(after)

	t.Log("the Deployments of fixedip are updated")
	for _, name := range programs {
		_, err := i.api.AppsV1().Deployments(system).Patch(within(t), name, types.MergePatchType,
			[]byte(`{"spec":{"template":{"metadata":{"annotations":{"updated":"yes"}}}}}`), metav1.PatchOptions{})
		i.must(err)
		i.rolledOut(name)
	}
	i.deletePods(after)
	i.web(after)
}

// installation is a cluster on which fixedip runs as pods only.
type installation struct {
	*scene
	// server is the host of the API server, not the cluster IP of its Service.
	server string
}

func installAsPods(t *testing.T) installation {
	t.Helper()
	site := t.TempDir()
	return installBy(t, func(o *realcluster.Options) {
		o.Product = func(ctx context.Context, c *realcluster.Cluster) error {
			if err := writeSite(site, c); err != nil {
				return err
			}
			return c.Apply(ctx, site)
		}
	})
}

// installBy starts a cluster whose nodes have the images of fixedip. change changes the options of the cluster.
func installBy(t *testing.T, change func(*realcluster.Options)) installation {
	t.Helper()
	images := packImages(t)
	c := start(t, func(o *realcluster.Options) {
		o.Images = images
		change(o)
	})
	cfg, err := c.RESTConfig(cluster.Admin)
	if err != nil {
		t.Fatal(err)
	}
	server, err := url.Parse(cfg.Host)
	if err != nil {
		t.Fatal(err)
	}
	i := installation{&scene{t: t, cluster: c, api: kubernetes.NewForConfigOrDie(cfg)}, server.Hostname()}
	t.Cleanup(i.logPods)
	return i
}

// writeSite writes a kustomization with the manifests and the address of the API server to dir, as a user without kube-proxy
// does.
func writeSite(dir string, c *realcluster.Cluster) error {
	cfg, err := c.RESTConfig(cluster.Admin)
	if err != nil {
		return err
	}
	server, err := url.Parse(cfg.Host)
	if err != nil {
		return err
	}
	source, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		return err
	}
	return errors.Join(
		os.Symlink(source, filepath.Join(dir, "fixedip")),
		os.WriteFile(filepath.Join(dir, "kustomization.yaml"), fmt.Appendf(nil, `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [fixedip/manifests]
configMapGenerator:
- name: fixedip-api-server
  namespace: fixedip-system
  literals: [KUBERNETES_SERVICE_HOST=%s, KUBERNETES_SERVICE_PORT=%s]
`, server.Hostname(), server.Port()), 0o600),
	)
}

// packImages builds our images with the tag of the manifests and returns the paths of their archives. The programs are in
// bin, next to the Dockerfile.
func packImages(t *testing.T) []string {
	t.Helper()
	return packImagesOf(t, filepath.Join("..", ".."), filepath.Dir(bin), "latest")
}

// packImagesOf builds the images of the Dockerfile in the folder source with a tag, and returns the paths of their archives.
// The programs are in the subfolder bin of the folder programs.
func packImagesOf(t *testing.T, source, programs, tag string) []string {
	t.Helper()
	file, err := os.Open(filepath.Join(source, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	recipes, err := image.ReadDockerfile(file)
	if err != nil {
		t.Fatal(err)
	}
	var archives []string
	for _, r := range recipes {
		img, err := image.Make(r, programs)
		if err != nil {
			t.Fatal(err)
		}
		archive := filepath.Join(t.TempDir(), r.Name+".tar")
		if err := image.Save(img, r.Name+":"+tag, archive); err != nil {
			t.Fatal(err)
		}
		archives = append(archives, archive)
	}
	return archives
}

// logPods logs the status of each pod of fixedip, and the end of its log, if the test failed.
func (i installation) logPods() {
	if !i.t.Failed() {
		return
	}
	pods, err := i.api.CoreV1().Pods(system).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		i.t.Error(err)
		return
	}
	for _, pod := range pods.Items {
		log, err := i.api.CoreV1().Pods(system).GetLogs(pod.Name, &corev1.PodLogOptions{}).DoRaw(context.Background())
		i.t.Logf("pod %s on node %s has the container statuses %+v; the end of its log (error %v):\n%s", pod.Name, pod.Spec.NodeName, pod.Status.ContainerStatuses, err, log[max(0, len(log)-3000):])
	}
}

// rolledOut waits until all pods of a Deployment have its last revision and are available, like kubectl rollout status.
func (i installation) rolledOut(name string) {
	i.t.Helper()
	var last appsv1.DeploymentStatus
	var lastErr error
	err := wait.PollUntilContextCancel(within(i.t), 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		d, err := i.api.AppsV1().Deployments(system).Get(ctx, name, metav1.GetOptions{})
		if lastErr = err; err != nil {
			return false, nil
		}
		last = d.Status
		all := *d.Spec.Replicas
		return last.ObservedGeneration == d.Generation && last.UpdatedReplicas == all && last.Replicas == all && last.AvailableReplicas == all, nil
	})
	if err != nil {
		i.t.Fatalf("wait for the rollout of Deployment %s: %v; last status: %+v", name, errors.Join(err, lastErr), last)
	}
}

// processes returns the pids of the processes of a Deployment on all nodes. The PID namespace of the test also shows
// processes of other clusters; the container IDs of the pods exclude them.
func (i installation) processes(name string) []int {
	i.t.Helper()
	pods, err := i.api.CoreV1().Pods(system).List(within(i.t), metav1.ListOptions{LabelSelector: "app=" + name})
	i.must(err)
	var containers []string
	for _, pod := range pods.Items {
		_, id, _ := strings.Cut(pod.Status.ContainerStatuses[0].ContainerID, "://")
		containers = append(containers, id)
	}
	processes, err := filepath.Glob("/proc/[0-9]*")
	i.must(err)
	var found []int
	for _, dir := range processes {
		// A process that has exited meanwhile has no link and is skipped.
		program, _ := os.Readlink(filepath.Join(dir, "exe"))
		group, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
		ours := slices.ContainsFunc(containers, func(id string) bool { return strings.Contains(string(group), id) })
		if program == "/"+name && ours {
			pid, err := strconv.Atoi(filepath.Base(dir))
			i.must(err)
			found = append(found, pid)
		}
	}
	return found
}

// unprivileged contains the expected kernel status of our processes, which have no privileges and cannot get any. Key: the
// field of /proc/PID/status. Seccomp 2 means that a filter is active.
var unprivileged = map[string]string{
	"Uid": "65532", "Gid": "65532", "CapEff": "0000000000000000", "CapBnd": "0000000000000000", "NoNewPrivs": "1", "Seccomp": "2",
}

// status returns the fields of unprivileged from the kernel status of a process. The values of Uid and Gid are the effective
// IDs.
func status(t *testing.T, pid int) map[string]string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		if fields := strings.Fields(value); unprivileged[key] != "" {
			found[key] = fields[min(1, len(fields)-1)]
		}
	}
	return found
}

// createWeb creates the StatefulSet web with three pods, which fixedip-scheduler places.
func (i installation) createWeb() {
	i.t.Helper()
	_, err := i.api.AppsV1().StatefulSets("default").Create(within(i.t), gen.StatefulSet("default", "web", 3, ofTestPods), metav1.CreateOptions{})
	i.must(err)
}

// ofTestPods makes the pods of a StatefulSet run the image of the test pods.
func ofTestPods(sts *appsv1.StatefulSet) {
	c := &sts.Spec.Template.Spec.Containers[0]
	c.Image, c.ImagePullPolicy = layout.WebImage, corev1.PullNever
}

// web waits until the pods of the StatefulSet web are ready and answer requests of their nodes, and returns the pods. Each
// pod in before must have been replaced by a pod with the same address and node.
func (i installation) web(before []*corev1.Pod) []*corev1.Pod {
	i.t.Helper()
	var pods []*corev1.Pod
	for n := range 3 {
		name := fmt.Sprintf("web-%d", n)
		at := slices.IndexFunc(before, func(p *corev1.Pod) bool { return p.Name == name })
		pod := i.awaitPod(name, func(p *corev1.Pod) bool { return p.DeletionTimestamp == nil && (at < 0 || p.UID != before[at].UID) })
		if at >= 0 && (pod.Status.PodIP != before[at].Status.PodIP || pod.Spec.NodeName != before[at].Spec.NodeName) {
			i.t.Errorf("pod %s: got %s on node %s, want %s on node %s", name, pod.Status.PodIP, pod.Spec.NodeName, before[at].Status.PodIP, before[at].Spec.NodeName)
		}
		i.answers(i.cluster.Node(pod.Spec.NodeName), pod)
		pods = append(pods, pod)
	}
	return pods
}

func (i installation) deletePods(pods []*corev1.Pod) {
	i.t.Helper()
	for _, p := range pods {
		i.must(i.api.CoreV1().Pods("default").Delete(within(i.t), p.Name, metav1.DeleteOptions{}))
	}
}
