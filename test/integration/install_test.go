// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"fixedip.io/fixedip/hack/cluster"
)

const (
	system       = "fixedip-system"
	agentTaint   = "node.cilium.io/agent-not-ready"
	controlPlane = "node-role.kubernetes.io/control-plane"
)

// TestInstalled checks the installation. The API server accepts the manifests with strict validation, and the default
// scheduler places the pods of both Deployments on nodes that are not ready. With the arguments, configuration and service
// accounts of these pods, the programs start and all probes succeed; nodes become ready and other pods get addresses. With two
// nodes, an update of both Deployments and the drain of a node succeed.
func TestInstalled(t *testing.T) {
	t.Parallel()
	useDefaultPorts(t)
	i := install(t)
	nodes := []string{"node-1", "node-2"}
	for _, n := range nodes {
		i.startNode(n)
		i.taint(n)
	}
	i.startKubeScheduler()
	for _, name := range []string{"fixedip-controller", "fixedip-scheduler"} {
		i.awaitRollout(name)
		if hosts := i.hosts(name); !slices.Equal(hosts, nodes) {
			t.Errorf("%s runs on %v, want %v", name, hosts, nodes)
		}
	}
	for _, n := range nodes {
		var cn ciliumv2.CiliumNode
		if err := i.api.Get(within(t), client.ObjectKey{Name: n}, &cn); client.IgnoreNotFound(err) != nil || len(cn.Spec.IPAM.Pool) > 0 {
			t.Fatalf("node %s has the pool %v before the controller runs, want none (error: %v)", n, cn.Spec.IPAM.Pool, err)
		}
	}

	i.run("fixedip-controller", "--kubeconfig="+i.Kubeconfig(cluster.Controller), "--leader-election-namespace="+system)
	for _, n := range nodes {
		i.must(i.WaitNodeReady(i.whileAllRun(), n))
		i.untaint(n)
	}
	kubeconfig := i.Kubeconfig(cluster.Scheduler)
	i.run("fixedip-scheduler", "--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig)
	i.create(statefulSet("web", 2))
	i.eventually("the pods to have addresses", func() bool {
		var pods corev1.PodList
		i.must(i.api.List(within(t), &pods, client.InNamespace(namespace)))
		return len(pods.Items) == 2 && !slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return !strings.HasPrefix(p.Status.PodIP, "10.240.") })
	})

	for _, name := range []string{"fixedip-controller", "fixedip-scheduler"} {
		d := i.deployment(name)
		i.must(i.api.Patch(within(t), d, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"template":{"metadata":{"annotations":{"updated":"yes"}}}}}`))))
		i.awaitRollout(name)
	}
	for _, name := range []string{"fixedip-controller", "fixedip-scheduler"} {
		i.drain("node-1", name)
	}
}

// installation is a cluster in which our manifests are installed and no program runs yet.
type installation struct{ *env }

func install(t *testing.T) installation {
	t.Helper()
	manifests := filepath.Join("..", "..", "manifests")
	c, err := cluster.Start(within(t), cluster.Options{
		Dir:       t.TempDir(),
		Binaries:  cluster.Binaries{ControlPlane: apiServer, SimNode: filepath.Join(bin, "fixedip-simnode")},
		Manifests: []string{manifests},
	})
	if err != nil {
		t.Fatal(err)
	}
	i := installation{&env{Cluster: c, t: t}}
	t.Cleanup(i.end)
	cfg, err := c.RESTConfig(cluster.Admin)
	i.must(err)
	i.api, err = client.New(cfg, client.Options{})
	i.must(err)
	i.must(ciliumv2.AddToScheme(i.api.Scheme()))

	objects, err := cluster.ReadManifests(manifests)
	i.must(err)
	for _, o := range objects {
		// The API server validates an object before it reports that the object exists.
		err := i.api.Create(within(t), o, client.DryRunAll, client.FieldValidation("Strict"))
		if !apierrors.IsAlreadyExists(err) {
			t.Errorf("create %s %s as a dry run: got %v, want AlreadyExists", o.GetKind(), o.GetName(), err)
		}
	}
	return i
}

// taint taints a node as soon as it exists, like a node of the control plane whose agent has not started.
func (i installation) taint(name string) {
	i.t.Helper()
	i.eventually("node "+name+" to exist and be tainted", func() bool {
		var node corev1.Node
		err := i.api.Get(within(i.t), client.ObjectKey{Name: name}, &node)
		if err == nil {
			node.Spec.Taints = append(node.Spec.Taints,
				corev1.Taint{Key: agentTaint, Effect: corev1.TaintEffectNoExecute},
				corev1.Taint{Key: controlPlane, Effect: corev1.TaintEffectNoSchedule})
			err = i.api.Update(within(i.t), &node)
		}
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			i.t.Fatal(err)
		}
		return err == nil
	})
}

// untaint removes the taints that taint has added, as the Cilium operator and an administrator do.
func (i installation) untaint(name string) {
	i.t.Helper()
	i.eventually("the taints of node "+name+" to be removed", func() bool {
		var node corev1.Node
		i.must(i.api.Get(within(i.t), client.ObjectKey{Name: name}, &node))
		node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == agentTaint || t.Key == controlPlane })
		err := i.api.Update(within(i.t), &node)
		if err != nil && !apierrors.IsConflict(err) {
			i.t.Fatal(err)
		}
		return err == nil
	})
}

// startKubeScheduler starts the default scheduler: fixedip-scheduler with a configuration that does not enable the plugin.
func (i installation) startKubeScheduler() {
	i.t.Helper()
	config := filepath.Join(i.Dir(), "kube-scheduler.yaml")
	i.must(os.WriteFile(config, fmt.Appendf(nil, `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: %s}
leaderElection: {leaderElect: false}
`, i.Kubeconfig(cluster.KubeScheduler)), 0o600))
	_, err := i.StartProcess("kube-scheduler", filepath.Join(bin, "race", "fixedip-scheduler"), "--config="+config, "--secure-port=0")
	i.must(err)
}

func (i installation) deployment(name string) *appsv1.Deployment {
	i.t.Helper()
	var d appsv1.Deployment
	i.must(i.api.Get(within(i.t), client.ObjectKey{Namespace: system, Name: name}, &d))
	return &d
}

// awaitRollout waits like kubectl rollout status.
func (i installation) awaitRollout(name string) {
	i.t.Helper()
	i.eventually("the rollout of Deployment "+name, func() bool {
		d := i.deployment(name)
		s := d.Status
		return s.ObservedGeneration == d.Generation && s.UpdatedReplicas == *d.Spec.Replicas && s.Replicas == s.UpdatedReplicas && s.AvailableReplicas == s.UpdatedReplicas
	})
}

func (i installation) pods(name string) []corev1.Pod {
	i.t.Helper()
	var pods corev1.PodList
	i.must(i.api.List(within(i.t), &pods, client.InNamespace(system), client.MatchingLabels{"app": name}))
	return pods.Items
}

// hosts returns the nodes of the pods of a Deployment, sorted. It also checks that each pod has the address of its node.
func (i installation) hosts(name string) []string {
	i.t.Helper()
	var hosts []string
	for _, p := range i.pods(name) {
		if p.Status.PodIP != p.Status.HostIP {
			i.t.Errorf("pod %s has the address %s, want %s, the address of its node", p.Name, p.Status.PodIP, p.Status.HostIP)
		}
		hosts = append(hosts, p.Spec.NodeName)
	}
	slices.Sort(hosts)
	return hosts
}

// withKubeconfig returns the configuration of a scheduler with a kubeconfig. A scheduler in a pod would use its service
// account.
func (i installation) withKubeconfig(config, kubeconfig string) string {
	i.t.Helper()
	var fields map[string]any
	i.must(yaml.UnmarshalStrict([]byte(config), &fields))
	i.must(unstructured.SetNestedField(fields, kubeconfig, "clientConnection", "kubeconfig"))
	data, err := yaml.Marshal(fields)
	i.must(err)
	return string(data)
}

// run starts the program of the pods of a Deployment, and waits until all probes succeed. The program has the arguments
// and the configuration of the pod, except values that a pod gets from its environment.
func (i installation) run(name string, args ...string) {
	i.t.Helper()
	pod := i.pods(name)[0].Spec
	container := pod.Containers[0]
	var configMap corev1.ConfigMap
	i.must(i.api.Get(within(i.t), client.ObjectKey{Namespace: system, Name: pod.Volumes[0].ConfigMap.Name}, &configMap))
	mount := container.VolumeMounts[0].MountPath
	dir := filepath.Join(i.Dir(), name)
	i.must(os.Mkdir(dir, 0o700))
	for file, text := range configMap.Data {
		if strings.Contains(text, "kind: KubeSchedulerConfiguration") {
			text = i.withKubeconfig(text, i.Kubeconfig(name))
		}
		i.must(os.WriteFile(filepath.Join(dir, file), []byte(strings.ReplaceAll(text, mount, dir)), 0o600))
	}
	for _, arg := range container.Args {
		args = append(args, strings.ReplaceAll(arg, mount, dir))
	}
	_, err := i.StartProcess(name, filepath.Join(bin, "race", name), args...)
	i.must(err)

	// Kubelets do not verify certificates of probes either.
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	i.t.Cleanup(transport.CloseIdleConnections)
	kubelet := &http.Client{Transport: transport}
	for _, probe := range []*corev1.Probe{container.LivenessProbe, container.ReadinessProbe} {
		get := probe.HTTPGet
		at := slices.IndexFunc(container.Ports, func(p corev1.ContainerPort) bool { return p.Name == get.Port.String() })
		url := fmt.Sprintf("%s://127.0.0.1:%d%s", strings.ToLower(string(get.Scheme)), container.Ports[at].HostPort, get.Path)
		var last string
		err := i.pollWhileAllRun(100*time.Millisecond, func(ctx context.Context) (bool, error) {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
			if err != nil {
				return false, err
			}
			response, err := kubelet.Do(request)
			if err != nil {
				last = err.Error()
				return false, nil
			}
			last = response.Status
			return response.StatusCode == http.StatusOK, response.Body.Close()
		})
		if err != nil {
			i.t.Fatalf("wait for probe %s of %s to succeed: %v; last error or status: %s", url, name, err, last)
		}
	}
}

// drain cordons a node and evicts the pod of a Deployment there, like kubectl drain. It waits until the replacement is
// reported as unschedulable, uncordons the node, and waits until the replacement is available.
func (i installation) drain(node, name string) {
	i.t.Helper()
	i.cordon(node, true)
	pods := i.pods(name)
	at := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName == node })
	i.eventually("the budget to allow the eviction of "+pods[at].Name, func() bool {
		err := i.api.SubResource("eviction").Create(within(i.t), &pods[at], &policyv1.Eviction{})
		if err != nil && !apierrors.IsTooManyRequests(err) {
			i.t.Fatal(err)
		}
		return err == nil
	})
	var last []corev1.Pod
	i.eventually("a pod of "+name+" to be unschedulable", func() bool {
		last = i.pods(name)
		return len(last) == 2 && slices.ContainsFunc(last, func(p corev1.Pod) bool {
			return p.Spec.NodeName == "" && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodScheduled && strings.Contains(c.Message, "1 node(s) were unschedulable")
			})
		})
	})
	i.cordon(node, false)
	i.awaitRollout(name)
}
