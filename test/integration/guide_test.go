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

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/hack/product"
	"fixedip.io/fixedip/hack/witness"
	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// startAsGuide starts a controller with nothing but the given arguments and variables, and with the
// cluster's kubeconfig in the place of the guide's. The nodes are up when it returns.
func startAsGuide(t *testing.T, nodes, args, env []string, nodeArgs ...string) *env {
	t.Helper()
	e := startCluster(t)
	e.witness.AnyOrder()
	for _, n := range nodes {
		e.startNode(n, nodeArgs...)
	}
	// The account runs in our namespace; in a pod, the pod says so.
	cfg, err := clientcmd.LoadFromFile(e.Kubeconfig(cluster.Controller))
	e.must(err)
	cfg.Contexts[cfg.CurrentContext].Namespace = "fixedip-system"
	kubeconfig := filepath.Join(e.Dir(), "scheduler.conf")
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

// placed is a StatefulSet whose pods are on a node without any scheduler, which is all that the
// controller sees of one that is not ours.
func placed(name, node string, replicas int32, labels map[string]string) *appsv1.StatefulSet {
	return statefulSet(name, replicas, func(s *appsv1.StatefulSet) {
		s.Spec.Template.Spec.SchedulerName = "default-scheduler"
		s.Spec.Template.Spec.NodeName = node
		s.Spec.Selector.MatchLabels = labels
		s.Spec.Template.Labels = labels
	})
}

// logged are the lines of a process's log that contain a text.
func (e *env) logged(p *cluster.Process, text string) []string {
	e.t.Helper()
	log, err := os.ReadFile(p.LogPath())
	e.must(err)
	return slices.DeleteFunc(strings.Split(string(log), "\n"), func(line string) bool { return !strings.Contains(line, text) })
}

// awaitEvent waits for an event on an object of the namespace.
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
		e.t.Fatalf("no event %s on %s saying %q, but\n%s", reason, name, note, strings.Join(have, "\n"))
	}
}

// The guide's Deployment starts our controller with nothing changed but the image, and pods that
// another scheduler placed get the address fixed that they run with: its first mode. (G9, G14)
func TestG14GuideDeployment(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("testdata", "guide-deployment.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var deployment appsv1.Deployment
	if err := yaml.UnmarshalStrict(text, &deployment); err != nil {
		t.Fatal(err)
	}
	container := deployment.Spec.Template.Spec.Containers[0]
	if diff := cmp.Diff([]corev1.EnvVar{{Name: "KUBECONFIG", Value: "/etc/kubernetes/scheduler.conf"}}, container.Env); diff != "" {
		t.Fatalf("the variables of the manifest (-want +got): %s", diff)
	}
	e := startAsGuide(t, []string{"node-1", "node-2"}, container.Args, nil)
	for _, name := range []string{"labelSector", "ipRateNum", "maxAllocatedIP", "enableIPv6"} {
		if lines := e.logged(e.controller, "Flag --"+name+" is deprecated; use --"); len(lines) != 1 || !strings.HasPrefix(lines[0], "W") {
			t.Errorf("the warnings of --%s are %q, want one", name, lines)
		}
	}

	e.create(placed("db", "node-1", 2, map[string]string{"app": "fixed-ip-pod"}), placed("other", "node-1", 1, map[string]string{"app": "other"}))
	before := e.awaitRunning(nil, names("db", 2)...)
	for name, r := range before {
		if want := []string{"node-1/" + r.Address}; !slices.Equal(r.Entries, want) {
			t.Errorf("pod %s runs with %s and has the entries %v", name, r.Address, r.Entries)
		}
	}
	e.awaitEvent("db-0", "Adopted", before["db-0"].Address+" is its address for life now")
	if rows := e.await("wait for pod other-0 to run", func(rows []witness.Row) bool {
		return slices.ContainsFunc(rows, func(r witness.Row) bool { return r.Pod == "other-0" && r.Running })
	}); slices.ContainsFunc(rows, func(r witness.Row) bool { return r.Pod == "other-0" && len(r.Entries)+len(r.Phase) > 0 }) {
		t.Error("a pod that the selector does not match was adopted")
	}
	e.deletePods(names("db", 2)...)
	e.sameAddresses(before, e.awaitRunning(before, names("db", 2)...))

	// Nothing steers such a pod back to the node of its address.
	moved := placed("db", "node-2", 2, map[string]string{"app": "fixed-ip-pod"})
	e.must(e.api.Patch(within(t), moved, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"updateStrategy":{"type":"OnDelete","rollingUpdate":null},"template":{"spec":{"nodeName":"node-2"}}}}`))))
	e.deletePods("db-1")
	e.await("wait for db-1 to run on node-2", func(rows []witness.Row) bool {
		return slices.ContainsFunc(rows, func(r witness.Row) bool { return r.Pod == "db-1" && r.Running && r.Node == "node-2" })
	})
	now := e.witness.Pod(namespace, "db-1").Status.PodIP
	e.awaitEvent("db-1", "AddressNotKept", "Runs with "+now+" on node node-2, and "+before["db-1"].Address+
		" is kept for it on node node-1; a pod template with schedulerName: fixedip-scheduler would have brought it back there")
	if entries := e.witness.Entries(namespace, "db-1"); !slices.Equal(entries, before["db-1"].Entries) {
		t.Errorf("pod db-1 had the entries %v and has %v", before["db-1"].Entries, entries)
	}
	e.witness.Forgive(namespace + "/db-1")

	// Unless its StatefulSet says that the address may change.
	e.must(e.api.Patch(within(t), moved, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"fixedip.io/failover":"Reassign"}}}`))))
	e.awaitRecord("db-1", func(f *v1alpha1.FixedIP) bool { return f.Spec.Failover == v1alpha1.Reassign })
	e.deletePods("db-1")
	e.awaitRecord("db-1", func(f *v1alpha1.FixedIP) bool {
		pod := e.witness.Pod(namespace, "db-1")
		return pod != nil && f.Spec.NodeName == "node-2" && slices.Equal(f.Spec.IPs, []string{pod.Status.PodIP}) && f.Status.Phase == v1alpha1.PhaseInUse
	})
	e.witness.Forgive(namespace + "/db-1")

	e.delete(&appsv1.StatefulSet{ObjectMeta: moved.ObjectMeta})
	e.await("wait for db to leave nothing behind", func(rows []witness.Row) bool { return len(rows) == 1 })
}

// The guide's three configurations. (G15)
func TestG15GuideScenarios(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args, env []string
		// adopted and ignored are the labels of pods.
		adopted, ignored map[string]string
		families         int
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
				t.Errorf("pod db-0 has the addresses %v and the entries %v, want one of %d families", got, before["db-0"].Entries, c.families)
			}
			e.awaitRecord("db-0", func(f *v1alpha1.FixedIP) bool {
				return strings.Join(f.Spec.IPs, ",") == before["db-0"].Address && f.Spec.Owner.Name == "db"
			})
			e.deletePods("db-0")
			e.sameAddresses(before, e.awaitRunning(before, "db-0"))
			if e.witness.Record(namespace, "ignored-0") != nil || len(e.witness.Entries(namespace, "ignored-0")) > 0 {
				t.Error("a pod that is to be left alone was adopted")
			}
		})
	}
}

// Pods that run already when the controller is told of them keep their addresses without a restart.
// An annotation counts for more than the selector, and the label of a branch for more than both. (G9,
// G11, G13)
func TestG9AdoptMode(t *testing.T) {
	t.Parallel()
	args := []string{"--cluster-pool-ipv4-cidr=10.240.0.0/16", "--exclude-dbbranch-prefixes=test-", "--metrics-bind-address=0", "--health-probe-bind-address=0"}
	e := startAsGuide(t, []string{"node-1"}, args, nil)
	make := func(name string, labels map[string]string, annotations map[string]string) *appsv1.StatefulSet {
		labels["name"] = name
		s := placed(name, "node-1", 2, labels)
		s.Spec.Template.Annotations = annotations
		return s
	}
	e.create(
		make("chosen", map[string]string{"tier": "db"}, nil),
		make("excluded", map[string]string{"tier": "db", "DBBranch": "test-1"}, map[string]string{"fixedip.io/enabled": "true"}),
		make("outside", map[string]string{"tier": "web"}, nil),
		make("opted-in", map[string]string{"tier": "web"}, map[string]string{"fixedip.io/enabled": "true"}),
		make("opted-out", map[string]string{"tier": "db"}, map[string]string{"fixedip.io/enabled": "false"}),
		make("mistaken", map[string]string{"tier": "db"}, map[string]string{"fixedip.io/enabled": "maybe"}),
	)
	adopted := append(names("chosen", 2), names("opted-in", 2)...)
	before := map[string]witness.Row{}
	e.await("wait for all pods to run", func(rows []witness.Row) bool {
		running := 0
		for _, r := range rows {
			before[r.Pod] = r
			if r.Running {
				running++
			}
		}
		return running == 12
	})
	e.awaitRunning(nil, names("opted-in", 2)...)
	e.must(e.controller.Terminate(within(t)))

	var err error
	e.controller, err = product.StartController(e.Cluster, "adopting", filepath.Join(bin, "race", "fixedip-controller"), product.ControllerOptions{
		Lease: product.QuickLease,
		Args:  append(args, "--label-selector=tier in (db)"),
	})
	e.must(err)
	after := e.awaitRunning(nil, adopted...)
	for _, name := range adopted {
		if before[name].UID != after[name].UID || before[name].Address != after[name].Address {
			t.Errorf("pod %s was %+v and is %+v", name, before[name], after[name])
		}
	}
	for _, name := range names("mistaken", 2) {
		e.awaitEvent(name, "InvalidAnnotation", `annotation fixedip.io/enabled of pod default/`+name+` is "maybe"; write "true" or "false"; its address is not fixed`)
	}
	e.deletePods(adopted...)
	e.sameAddresses(after, e.awaitRunning(after, adopted...))
	e.await("look at those that are left alone", func(rows []witness.Row) bool {
		for _, r := range rows {
			if !slices.Contains(adopted, r.Pod) && len(r.Phase)+len(r.Entries) > 0 {
				t.Errorf("pod %s was adopted: %+v", r.Pod, r)
			}
		}
		return true
	})
}
