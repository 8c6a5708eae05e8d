// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/hack/product"
	"fixedip.io/fixedip/hack/witness"
	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/reservation"
)

// startAsGuide starts a cluster with the given nodes and a controller, and returns when the nodes are ready. The controller
// has only the given arguments. Its environment is that of the test without POD_NAMESPACE, with the given variables, and with
// a KUBECONFIG of the cluster.
func startAsGuide(t *testing.T, nodes, args, env []string, nodeArgs ...string) *env {
	t.Helper()
	e := startCluster(t)
	e.witness.AnyOrder()
	for _, n := range nodes {
		e.startNode(n, nodeArgs...)
	}
	// The controller takes the namespace of its Leases from the kubeconfig. In a pod it would take the namespace of the pod.
	cfg, err := clientcmd.LoadFromFile(e.Kubeconfig(cluster.Controller))
	e.must(err)
	cfg.Contexts[cfg.CurrentContext].Namespace = "fixedip-system"
	kubeconfig := filepath.Join(e.Dir(), "controller.kubeconfig")
	e.must(clientcmd.WriteToFile(*cfg, kubeconfig))
	variables := slices.Concat([]string{"-u", "POD_NAMESPACE"}, env, []string{"KUBECONFIG=" + kubeconfig})
	e.controller, err = e.StartProcess("controller", "/usr/bin/env",
		slices.Concat(variables, []string{filepath.Join(bin, "race", "fixedip-controller")}, args)...)
	e.must(err)
	for _, n := range nodes {
		e.must(e.WaitNodeReady(e.whileAllRun(), n))
	}
	return e
}

// placed returns a StatefulSet whose pod template has node in spec.nodeName, so that no scheduler places the pods. To the
// controller, the pods look like pods of another scheduler. If node is empty, the pods wait for the default scheduler.
func placed(name, node string, replicas int32, labels map[string]string) *appsv1.StatefulSet {
	return statefulSet(name, replicas, func(s *appsv1.StatefulSet) {
		s.Spec.Template.Spec.SchedulerName = "default-scheduler"
		s.Spec.Template.Spec.NodeName = node
		s.Spec.Selector.MatchLabels = labels
		s.Spec.Template.Labels = labels
	})
}

// logged returns the lines of a process log that contain a text.
func (e *env) logged(p *cluster.Process, text string) []string {
	e.t.Helper()
	log, err := os.ReadFile(p.LogPath())
	e.must(err)
	return slices.DeleteFunc(strings.Split(string(log), "\n"), func(line string) bool { return !strings.Contains(line, text) })
}

// awaitEvent waits for an event with exactly this note on an object of the namespace.
func (e *env) awaitEvent(name, reason, note string) {
	e.t.Helper()
	var last eventsv1.EventList
	err := wait.PollUntilContextCancel(within(e.t), 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		if err := e.api.List(ctx, &last, client.InNamespace(namespace)); err != nil {
			return false, err
		}
		return slices.ContainsFunc(last.Items, func(ev eventsv1.Event) bool {
			return ev.Regarding.Name == name && ev.Reason == reason && ev.Note == note
		}), nil
	})
	if err != nil {
		var have []string
		for _, ev := range last.Items {
			have = append(have, ev.Regarding.Name+" "+ev.Reason+": "+ev.Note)
		}
		e.t.Fatalf("no event %s on %s with the note %q; events:\n%s", reason, name, note, strings.Join(have, "\n"))
	}
}

// deployGuide applies the guide's Deployment with our image, and gives the service account of the guide the rights of ours.
// It does the work of a kubelet for the pods: it starts the program of the image with the arguments, variables and account
// of the pod. The kubeconfig is another file than in the pod, and only the program of the first pod serves metrics and health
// checks. deployGuide returns the pods.
func (e *env) deployGuide() (pods []*corev1.Pod) {
	e.t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "guide-deployment.yaml"))
	e.must(err)
	var deployment appsv1.Deployment
	e.must(yaml.UnmarshalStrict(text, &deployment))
	deployment.Spec.Template.Spec.Containers[0].Image = "fixedip-controller:latest"
	e.must(e.Apply(within(e.t), filepath.Join("..", "..", "manifests", "guide-rbac.yaml")))
	e.create(&deployment)
	e.eventually("the Deployment to have its pods", func() bool {
		var list corev1.PodList
		e.must(e.api.List(within(e.t), &list, client.InNamespace(deployment.Namespace), client.MatchingLabels(deployment.Spec.Selector.MatchLabels)))
		pods = nil
		for i := range list.Items {
			pods = append(pods, &list.Items[i])
		}
		return len(pods) == int(*deployment.Spec.Replicas)
	})
	for i, pod := range pods {
		container := pod.Spec.Containers[0]
		command := []string{"-u", "POD_NAMESPACE"}
		for _, v := range container.Env {
			if v.Name == "KUBECONFIG" {
				v.Value = e.accountOf(pod)
			}
			command = append(command, v.Name+"="+v.Value)
		}
		command = append(append(command, filepath.Join(bin, "race", "fixedip-controller")), container.Args...)
		if i > 0 {
			// Pods have their own ports, but these programs share one machine.
			command = append(command, "--metrics-bind-address=0", "--health-probe-bind-address=0")
		}
		_, err := e.StartProcess(pod.Name, "/usr/bin/env", command...)
		e.must(err)
	}
	return pods
}

// accountOf writes a kubeconfig with the account and namespace of a pod, and returns its path.
func (e *env) accountOf(pod *corev1.Pod) string {
	e.t.Helper()
	admin, err := e.RESTConfig(cluster.Admin)
	e.must(err)
	token, err := kubernetes.NewForConfigOrDie(admin).CoreV1().ServiceAccounts(pod.Namespace).
		CreateToken(within(e.t), pod.Spec.ServiceAccountName, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	e.must(err)
	cfg, err := clientcmd.LoadFromFile(e.Kubeconfig(cluster.Admin))
	e.must(err)
	now := cfg.Contexts[cfg.CurrentContext]
	now.Namespace, cfg.AuthInfos[now.AuthInfo].Token = pod.Namespace, token.Status.Token
	path := filepath.Join(e.Dir(), pod.Name+".conf")
	e.must(clientcmd.WriteToFile(*cfg, path))
	return path
}

// TestG14GuideDeployment checks that the guide's Deployment, with only the image changed, starts both replicas of our
// controller. It also checks the first mode of the guide, the adoption of pods of another scheduler (G14).
func TestG14GuideDeployment(t *testing.T) {
	t.Parallel()
	useDefaultPorts(t)
	e := startCluster(t)
	e.witness.AnyOrder()
	nodes := []string{"node-1", "node-2"}
	for _, n := range nodes {
		e.startNode(n)
	}
	pods := e.deployGuide()
	e.controller = e.Process(pods[0].Name)
	for _, n := range nodes {
		e.must(e.WaitNodeReady(e.whileAllRun(), n))
	}
	e.eventually("one of the replicas to lead", func() bool {
		var lease coordinationv1.Lease
		err := e.api.Get(within(t), client.ObjectKey{Namespace: "kube-system", Name: "cilium-ipam-leader"}, &lease)
		return err == nil && ptr.Deref(lease.Spec.HolderIdentity, "") != ""
	})
	for _, name := range []string{"labelSector", "ipRateNum", "maxAllocatedIP", "enableIPv6"} {
		if lines := e.logged(e.controller, "Flag --"+name+" is deprecated; use --"); len(lines) != 1 || !strings.HasPrefix(lines[0], "W") {
			t.Errorf("the warnings of --%s are %q, want one", name, lines)
		}
	}

	e.create(placed("db", "node-1", 2, map[string]string{"app": "fixed-ip-pod"}), placed("other", "node-1", 1, map[string]string{"app": "other"}))
	before := e.awaitRunning(nil, names("db", 2)...)
	for name, r := range before {
		if want := []string{"node-1/" + r.Address}; !slices.Equal(r.Entries, want) {
			t.Errorf("pod %s runs with %s and has the entries %v, want one entry with that address", name, r.Address, r.Entries)
		}
	}
	e.awaitEvent("db-0", "Adopted", "Reserved the pod's current IPs: "+before["db-0"].Address)
	if rows := e.await("wait for pod other-0 to run", func(rows []witness.Row) bool {
		return slices.ContainsFunc(rows, func(r witness.Row) bool { return r.Pod == "other-0" && r.Running })
	}); slices.ContainsFunc(rows, func(r witness.Row) bool { return r.Pod == "other-0" && len(r.Entries)+len(r.State) > 0 }) {
		t.Error("pod other-0, which the selector does not match, was adopted")
	}
	e.deletePods(names("db", 2)...)
	e.sameAddresses(before, e.awaitRunning(before, names("db", 2)...))

	// The other scheduler does not place the pod on the node of its address.
	moved := placed("db", "node-2", 2, map[string]string{"app": "fixed-ip-pod"})
	e.must(e.api.Patch(within(t), moved, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"updateStrategy":{"type":"OnDelete","rollingUpdate":null},"template":{"spec":{"nodeName":"node-2"}}}}`))))
	e.deletePods("db-1")
	e.await("wait for db-1 to run on node-2", func(rows []witness.Row) bool {
		return slices.ContainsFunc(rows, func(r witness.Row) bool { return r.Pod == "db-1" && r.Running && r.Node == "node-2" })
	})
	now := e.witness.Pod(namespace, "db-1").Status.PodIP
	e.awaitEvent("db-1", "AddressMismatch", "Pod runs with "+now+" on node node-2 instead of its reserved IPs ("+before["db-1"].Address+
		"), which are in the pool of node node-1; to place the next pod there, set schedulerName of the pod, or of the pod template of its workload, to fixedip-scheduler")
	if entries := e.witness.Entries(namespace, "db-1"); !slices.Equal(entries, before["db-1"].Entries) {
		t.Errorf("pod db-1 has the entries %v, want %v", entries, before["db-1"].Entries)
	}
	e.witness.Forgive(namespace + "/db-1")

	// If the policy of the StatefulSet is Reassign, the FixedIP gets the new address.
	e.must(e.api.Patch(within(t), moved, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"fixedip.io/failover":"Reassign"}}}`))))
	e.awaitRecord("db-1", func(f *v1alpha1.FixedIP) bool { return f.Spec.Failover == v1alpha1.Reassign })
	e.deletePods("db-1")
	e.awaitRecord("db-1", func(f *v1alpha1.FixedIP) bool {
		pod := e.witness.Pod(namespace, "db-1")
		return pod != nil && f.Spec.NodeName == "node-2" && slices.Equal(f.Spec.IPs, []string{pod.Status.PodIP}) && reservation.StateOf(f) == reservation.InUse
	})
	e.witness.Forgive(namespace + "/db-1")

	e.delete(&appsv1.StatefulSet{ObjectMeta: moved.ObjectMeta})
	e.await("wait for all pods, FixedIPs and entries of db to be deleted", func(rows []witness.Row) bool { return len(rows) == 1 })
	for _, pod := range pods {
		if p := e.Process(pod.Name); !p.Running() || len(e.logged(p, "forbidden")) > 0 {
			t.Errorf("replica %s: got running %t and the refused requests %q, want true and none", pod.Name, p.Running(), e.logged(p, "forbidden"))
		}
	}
}

// TestG13Exclusion checks that pods whose label DBBranch has one of the prefixes are excluded, whatever their
// annotations say (G13).
func TestG13Exclusion(t *testing.T) {
	t.Parallel()
	e := startAsGuide(t, []string{"node-1"}, []string{
		`--labelSector={"matchLabels":{"tier":"db"}}`, "--excludeDbbranchPrefixs=test-,staging-",
		"--cluster-pool-ipv4-cidr=10.240.0.0/16", "--metrics-bind-address=0", "--health-probe-bind-address=0",
	}, nil)
	// branches contains the values of the label DBBranch. Key: the workload. An empty value means that the pod has no such label.
	branches := map[string]string{
		"first": "test-1", "second": "staging-eu", "opted-in": "test-2",
		"other": "release-1", "shorter": "test", "inside": "a-test-1", "capital": "Test-1", "none": "",
	}
	excluded := []string{"first", "second", "opted-in"}
	var adopted, excludedPods []string
	for name, branch := range branches {
		labels := map[string]string{"tier": "db", "name": name}
		if branch != "" {
			labels["DBBranch"] = branch
		}
		s := placed(name, "node-1", 1, labels)
		if name == "opted-in" {
			s.Spec.Template.Annotations = map[string]string{"fixedip.io/enabled": "true"}
		}
		e.create(s)
		if slices.Contains(excluded, name) {
			excludedPods = append(excludedPods, name+"-0")
		} else {
			adopted = append(adopted, name+"-0")
		}
	}
	before := e.awaitRunning(nil, adopted...)
	e.awaitPods(excludedPods...)
	e.deletePods(adopted...)
	e.sameAddresses(before, e.awaitRunning(before, adopted...))
	for _, r := range e.witness.State(namespace) {
		if slices.Contains(excludedPods, r.Pod) && len(r.Entries)+len(r.State) > 0 {
			t.Errorf("pod %s is excluded, but has a FixedIP or entries: %+v", r.Pod, r)
		}
	}
}

// TestG15GuideScenarios checks for the three configurations of the guide that only the selected pods are adopted, with
// addresses of the right families (G15).
func TestG15GuideScenarios(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args, env []string
		// adopted and ignored are labels of pods that are adopted and of pods that are not.
		adopted, ignored map[string]string
		// families is the number of IP families.
		families int
	}{
		"small": {
			args: []string{
				`--labelSector={"matchLabels":{"fixed-ip":"true"}}`, "--ipRateNum=10", "--maxAllocatedIP=50",
				"--cluster-pool-ipv4-cidr=192.168.0.0/16", "--cluster-pool-ipv4-mask-size=24",
			},
			adopted: map[string]string{"fixed-ip": "true"}, ignored: map[string]string{"fixed-ip": "false"}, families: 1,
		},
		"dual stack": {
			args: []string{
				`--labelSector={"matchLabels":{"app":"database"}}`, "--ipRateNum=20", "--maxAllocatedIP=200",
				"--enableIPv6=true", "--enableStaticPodIPv6=true",
				"--cluster-pool-ipv4-cidr=10.240.0.0/16", "--cluster-pool-ipv4-mask-size=24",
				"--cluster-pool-ipv6-cidr=fd00:240::/120", "--cluster-pool-ipv6-mask-size=124",
			},
			adopted: map[string]string{"app": "database"}, ignored: map[string]string{"app": "web"}, families: 2,
		},
		"exclusion": {
			args:    []string{`--labelSector={"matchLabels":{"env":"production"}}`, "--excludeDbbranchPrefixs=test-,staging-"},
			env:     []string{"CLUSTER_POOL_IPV4_CIDR=10.240.0.0/16", "CLUSTER_POOL_IPV4_MASK_SIZE=24"},
			adopted: map[string]string{"env": "production", "DBBranch": "release-1"}, ignored: map[string]string{"env": "production", "DBBranch": "staging-1"}, families: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := startAsGuide(t, []string{"node-1"}, append(c.args, "--metrics-bind-address=0", "--health-probe-bind-address=0"), c.env, fmt.Sprintf("--ipv6=%v", c.families == 2))
			e.create(placed("ignored", "node-1", 1, c.ignored))
			e.await("wait for pod ignored-0 to run", func(rows []witness.Row) bool {
				return slices.ContainsFunc(rows, func(r witness.Row) bool { return r.Pod == "ignored-0" && r.Running })
			})
			e.create(placed("db", "node-1", 1, c.adopted))
			before := e.awaitRunning(nil, "db-0")
			if got := strings.Split(before["db-0"].Address, ","); len(got) != c.families || len(before["db-0"].Entries) != c.families {
				t.Errorf("pod db-0 has the addresses %v and the entries %v, want %d of each, one for each IP family", got, before["db-0"].Entries, c.families)
			}
			e.awaitRecord("db-0", func(f *v1alpha1.FixedIP) bool {
				return strings.Join(f.Spec.IPs, ",") == before["db-0"].Address && f.Spec.Owner.Name == "db"
			})
			e.deletePods("db-0")
			e.sameAddresses(before, e.awaitRunning(before, "db-0"))
			if e.witness.Record(namespace, "ignored-0") != nil || len(e.witness.Entries(namespace, "ignored-0")) > 0 {
				t.Error("pod ignored-0 has a FixedIP or entries, want neither")
			}
		})
	}
}

// TestG9AdoptMode checks that a controller, when it starts, adopts the addresses of running pods without restarting the pods,
// and that an annotation takes precedence over the selector (G9).
func TestG9AdoptMode(t *testing.T) {
	t.Parallel()
	args := []string{"--cluster-pool-ipv4-cidr=10.240.0.0/16", "--metrics-bind-address=0", "--health-probe-bind-address=0"}
	e := startAsGuide(t, []string{"node-1"}, args, nil)
	make := func(name string, labels map[string]string, annotations map[string]string) *appsv1.StatefulSet {
		labels["name"] = name
		s := placed(name, "node-1", 2, labels)
		s.Spec.Template.Annotations = annotations
		return s
	}
	e.create(
		make("chosen", map[string]string{"tier": "db"}, nil),
		make("excluded", map[string]string{"tier": "db", "phase": "trial"}, nil),
		make("outside", map[string]string{"tier": "web"}, nil),
		make("opted-in", map[string]string{"tier": "web"}, map[string]string{"fixedip.io/enabled": "true"}),
		make("opted-out", map[string]string{"tier": "db"}, map[string]string{"fixedip.io/enabled": "false"}),
		make("invalid", map[string]string{"tier": "db"}, map[string]string{"fixedip.io/enabled": "maybe"}),
	)
	// The example of the guide is a bare pod.
	bare := func(name, tier string) *corev1.Pod {
		pod := unreservedPod(name, "", "node-1")
		pod.Labels = map[string]string{"tier": tier}
		return pod
	}
	e.create(bare("bare", "db"), bare("bare-outside", "web"))
	adopted := append(append(names("chosen", 2), names("opted-in", 2)...), "bare")
	before := map[string]witness.Row{}
	e.await("wait for all pods to run", func(rows []witness.Row) bool {
		running := 0
		for _, r := range rows {
			before[r.Pod] = r
			if r.Running {
				running++
			}
		}
		return running == 14
	})
	e.awaitRunning(nil, names("opted-in", 2)...)
	e.must(e.controller.Terminate(within(t)))

	var err error
	e.controller, err = product.StartController(e.Cluster, "adopting", filepath.Join(bin, "race", "fixedip-controller"), product.ControllerOptions{
		Lease: testLease,
		Args:  append(args, `--label-selector={"matchLabels":{"tier":"db"},"matchExpressions":[{"key":"phase","operator":"DoesNotExist"}]}`),
	})
	e.must(err)
	after := e.awaitRunning(nil, adopted...)
	for _, name := range adopted {
		if before[name].UID != after[name].UID || before[name].Address != after[name].Address {
			t.Errorf("pod %s is %+v, want the UID and the address of %+v", name, after[name], before[name])
		}
	}
	for _, name := range names("invalid", 2) {
		e.awaitEvent(name, "InvalidAnnotation", `annotation fixedip.io/enabled of pod default/`+name+` is "maybe"; write "true" or "false"; the IPs of the pod are not adopted`)
	}
	e.deletePods(adopted...)
	e.awaitRecord("bare", func(f *v1alpha1.FixedIP) bool { return reservation.StateOf(f) == reservation.Reserved })
	e.createAgain(bare("bare", "db"))
	e.sameAddresses(after, e.awaitRunning(after, adopted...))
	e.await("check the pods that are not adopted", func(rows []witness.Row) bool {
		for _, r := range rows {
			if !slices.Contains(adopted, r.Pod) && len(r.State)+len(r.Entries) > 0 {
				t.Errorf("pod %s was adopted: got %+v, want neither a FixedIP nor entries", r.Pod, r)
			}
		}
		return true
	})
}
