// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/hack/product"
	"fixedip.io/fixedip/hack/witness"
	"fixedip.io/fixedip/ipam/scheme"
	"fixedip.io/fixedip/test/gen"
)

const namespace = "default"

// env is the cluster of one test. At the end of the test all processes are stopped, and the test fails if the witness
// reports a violation that the test did not provoke, or if one of our programs had a data race (see dataRaces).
type env struct {
	*cluster.Cluster
	t          *testing.T
	api        client.Client
	witness    *witness.Witness
	scheduler  *cluster.Process
	controller *cluster.Process
	// provoked reports whether the test caused a violation on purpose. If it is nil, the test causes none.
	provoked func(violation string) bool
	// plain is true if the test uses the programs without the race detector.
	plain bool
}

// options configures an env.
type options struct {
	nodes []string
	// controllerArgs are the flags of the controller; nil: no controller is started.
	controllerArgs []string
	// families are the IP families of the scheduler; nil: IPv4.
	families []string
	// failover is the default failover policy of scheduler and controller; empty: Wait.
	failover string
	// movable is true if the scheduler may migrate addresses. The controller gets this setting only if failover is not empty.
	movable bool
	// controlPlaneArgs are additional flags of the control plane.
	controlPlaneArgs []string
	// workloads is the setting workloads of the scheduler, as YAML on one line; empty: the default.
	workloads string
	// noScheduler is true if start does not start a scheduler.
	noScheduler bool
	// manifests are applied before the programs start, in addition to those of startCluster. They are paths below manifests.
	manifests []string
	// plain is true if the test uses the programs without the race detector.
	plain bool
}

// defaultPool contains the flags of the controller in tests that need no other cluster pool or cooldown.
var defaultPool = []string{"--cluster-pool-ipv4-cidr=10.240.0.0/16", "--address-cooldown=2s"}

// defaultPorts is locked by a test whose controller listens on its default ports.
var defaultPorts sync.Mutex

// useDefaultPorts waits until no other test uses the default ports of the controller, and reserves them until the test ends.
// A test calls it before it starts its programs. Cleanup functions run in reverse order, so the programs have ended before
// the next test gets the ports.
func useDefaultPorts(t *testing.T) {
	defaultPorts.Lock()
	t.Cleanup(defaultPorts.Unlock)
}

// startCluster starts a control plane, applies the CRDs, the namespace and the RBAC rules of the manifests, and starts the
// witness.
func startCluster(t *testing.T, controlPlaneArgs ...string) *env {
	t.Helper()
	root := filepath.Join("..", "..", "manifests")
	c, err := cluster.Start(within(t), cluster.Options{
		Dir:      t.TempDir(),
		Binaries: cluster.Binaries{ControlPlane: apiServer, SimNode: filepath.Join(bin, "fixedip-simnode")},
		Manifests: []string{
			filepath.Join(root, "crd"), filepath.Join(root, "namespace.yaml"),
			filepath.Join(root, "scheduler-rbac.yaml"), filepath.Join(root, "controller-rbac.yaml"),
		},
		ControlPlaneArgs: controlPlaneArgs,
	})
	if err != nil {
		t.Fatal(err)
	}
	e := &env{Cluster: c, t: t}
	t.Cleanup(e.end)
	cfg, err := c.RESTConfig(cluster.Admin)
	e.must(err)
	kinds, err := scheme.New()
	e.must(err)
	e.api, err = client.New(cfg, client.Options{Scheme: kinds})
	e.must(err)
	// t.Context ends before the cleanup functions run. The witness has to watch while the test's own cleanup functions run, too.
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	e.witness, err = witness.Start(ctx, cfg)
	e.must(err)
	return e
}

// start starts a cluster with the nodes and programs of o, and waits until the nodes are ready.
func start(t *testing.T, o options) *env {
	t.Helper()
	e := startCluster(t, o.controlPlaneArgs...)
	e.plain = o.plain
	for _, m := range o.manifests {
		e.must(e.Apply(within(t), filepath.Join("..", "..", "manifests", m)))
	}
	for _, n := range o.nodes {
		e.startNode(n)
	}
	if o.controllerArgs != nil {
		if o.failover != "" {
			o.controllerArgs = append(slices.Clone(o.controllerArgs), "--failover="+o.failover, fmt.Sprintf("--allow-address-migration=%t", o.movable))
		}
		e.startController("controller", o.controllerArgs...)
	}
	if !o.noScheduler {
		e.scheduler = e.startScheduler("scheduler", product.SchedulerOptions{Families: o.families, Failover: o.failover, Movable: o.movable, Workloads: o.workloads})
	}
	for _, n := range o.nodes {
		e.must(e.WaitNodeReady(e.whileAllRun(), n))
	}
	return e
}

// whileAllRun returns a context for one step. The context also ends as soon as a process of the cluster does not run, even if
// the test stopped that process before the call. Processes that start after the call do not count.
func (e *env) whileAllRun() context.Context {
	ctx, cancel := context.WithCancelCause(within(e.t))
	for _, p := range e.Processes() {
		go func() {
			select {
			case <-p.Exited():
				cancel(fmt.Errorf("%s has ended: %s", p.Name, p.ExitState()))
			case <-ctx.Done():
			}
		}()
	}
	e.t.Cleanup(func() { cancel(nil) })
	return ctx
}

// pollWhileAllRun calls condition at once and after each interval until it returns true or an error, or the context of
// whileAllRun ends. If that context ends, the error is its cause, which names the process that does not run.
func (e *env) pollWhileAllRun(interval time.Duration, condition wait.ConditionWithContextFunc) error {
	ctx := e.whileAllRun()
	err := wait.PollUntilContextCancel(ctx, interval, true, condition)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func (e *env) startNode(name string, args ...string) *cluster.Process {
	e.t.Helper()
	p, err := e.StartNode(within(e.t), name, append([]string{"--update-rate=500ms", "--sandbox-retry=500ms"}, args...)...)
	e.must(err)
	return p
}

// program returns the path of one of our programs.
func (e *env) program(name string) string {
	if e.plain {
		return filepath.Join(bin, name)
	}
	return filepath.Join(bin, "race", name)
}

// startController starts a controller. name distinguishes replicas.
func (e *env) startController(name string, args ...string) {
	e.t.Helper()
	var err error
	e.controller, err = product.StartController(e.Cluster, name, e.program("fixedip-controller"),
		product.ControllerOptions{Lease: testLease, Args: args})
	e.must(err)
}

func (e *env) startScheduler(name string, o product.SchedulerOptions) *cluster.Process {
	e.t.Helper()
	o.Lease = testLease
	p, err := product.StartScheduler(e.Cluster, name, e.program("fixedip-scheduler"), o)
	e.must(err)
	return p
}

func (e *env) end() {
	if e.witness != nil {
		for _, v := range e.witness.Violations() {
			if e.provoked != nil && e.provoked(v) {
				continue
			}
			e.t.Errorf("the witness reports a violation: %s", v)
		}
	}
	processes := e.Processes()
	e.Discard()
	for _, p := range processes {
		log, err := os.ReadFile(p.LogPath())
		if err != nil {
			e.t.Errorf("read the log of %s: %v", p.Name, err)
		}
		for _, race := range dataRaces(log) {
			e.t.Errorf("%s has a data race: %s", p.Name, race)
		}
		if folder := os.Getenv("FIXEDIP_LOGS"); folder != "" && e.t.Failed() {
			e.must(os.WriteFile(filepath.Join(folder, strings.ReplaceAll(e.t.Name(), "/", "-")+"-"+p.Name+".log"), log, 0o600))
		}
		if e.t.Failed() && p.Name != "control-plane" {
			e.t.Logf("the end of the log of %s:\n%s", p.Name, log[max(0, len(log)-4000):])
		}
	}
}

// dataRaces returns the reports of the race detector that name a package of plugins or ipam. It leaves out others: the
// scheduler of Kubernetes v1.34 has a data race between handleSchedulingFailure and PriorityQueue.Update, which every
// unschedulable pod may trigger (kubernetes/kubernetes#139340).
func dataRaces(log []byte) []string {
	var found []string
	for _, part := range bytes.Split(log, []byte("==================")) {
		ours := bytes.Contains(part, []byte("fixedip.io/fixedip/plugins")) || bytes.Contains(part, []byte("fixedip.io/fixedip/ipam"))
		if ours && bytes.Contains(part, []byte("WARNING: DATA RACE")) {
			found = append(found, string(part))
		}
	}
	return found
}

// part runs a subtest in the same cluster.
func (e *env) part(name string, f func(*env)) {
	e.t.Helper()
	e.t.Run(name, func(t *testing.T) {
		mine := *e
		mine.t = t
		f(&mine)
	})
}

func (e *env) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

// statefulSet returns a StatefulSet in the namespace of the tests; see gen.StatefulSet.
func statefulSet(name string, replicas int32, change ...func(*appsv1.StatefulSet)) *appsv1.StatefulSet {
	return gen.StatefulSet(namespace, name, replicas, change...)
}

func (e *env) create(objects ...client.Object) {
	e.t.Helper()
	for _, o := range objects {
		e.must(e.api.Create(within(e.t), o))
	}
}

func (e *env) delete(o client.Object, opts ...client.DeleteOption) {
	e.t.Helper()
	e.must(e.api.Delete(within(e.t), o, opts...))
}

func (e *env) deletePods(names ...string) {
	e.t.Helper()
	for _, n := range names {
		e.delete(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: n}})
	}
}

// await waits until condition returns true for the rows of the namespace of the tests (witness.Row), and returns these rows.
// If that takes longer than stepTimeout, it fails the test with a message that begins with what.
func (e *env) await(what string, condition func([]witness.Row) bool) []witness.Row {
	e.t.Helper()
	rows, err := e.witness.Await(within(e.t), namespace, condition)
	if err != nil {
		e.t.Fatalf("%s: %v\n%s", what, err, e.waiting(rows))
	}
	return rows
}

// waiting describes the rows whose pods do not run.
func (e *env) waiting(rows []witness.Row) string {
	var b strings.Builder
	for _, r := range rows {
		pod := e.witness.Pod(namespace, r.Pod)
		switch {
		case r.Running:
		case pod == nil:
			fmt.Fprintf(&b, "%s: there is no pod\n", r.Pod)
		default:
			fmt.Fprintf(&b, "%s: UID %s, created at %s, deletionTimestamp %v, status %+v\n", r.Pod, pod.UID, pod.CreationTimestamp.Format(time.TimeOnly), pod.DeletionTimestamp, pod.Status)
		}
	}
	return b.String()
}

// awaitRunning waits until the named pods run with other UIDs than in before, and their FixedIPs are in use. It returns the
// rows of these pods. Key of before and of the result: the pod name. A pod that is not in before may have any UID.
func (e *env) awaitRunning(before map[string]witness.Row, names ...string) map[string]witness.Row {
	e.t.Helper()
	found := map[string]witness.Row{}
	e.await("wait for "+strings.Join(names, ", ")+" to run", func(rows []witness.Row) bool {
		clear(found)
		for _, r := range rows {
			if slices.Contains(names, r.Pod) && r.Running && r.UID != before[r.Pod].UID && r.State == "InUse" {
				found[r.Pod] = r
			}
		}
		return len(found) == len(names)
	})
	return found
}

// sameAddresses checks that the pods in before have the same addresses on the same nodes in after.
func (e *env) sameAddresses(before, after map[string]witness.Row) {
	e.t.Helper()
	for name, b := range before {
		if a := after[name]; a.Address != b.Address || a.Node != b.Node {
			e.t.Errorf("pod %s has %s on node %s, want %s on node %s", name, a.Address, a.Node, b.Address, b.Node)
		}
	}
}

// names returns the pod names of a StatefulSet.
func names(workload string, replicas int) []string {
	var out []string
	for i := range replicas {
		out = append(out, fmt.Sprintf("%s-%d", workload, i))
	}
	return out
}

// podMessage waits until the message of an unschedulable pod contains the given text.
func (e *env) podMessage(name, contains string) {
	e.t.Helper()
	e.await(fmt.Sprintf("wait for pod %s to report %q", name, contains), func([]witness.Row) bool {
		pod := e.witness.Pod(namespace, name)
		return pod != nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && strings.Contains(c.Message, contains)
		})
	})
}

// ownerEntry writes an owned entry into the pool of a node by hand. The address is in the subnet of the node, a /24, and
// ends with suffix, such as ".50".
func (e *env) ownerEntry(node, suffix, owner, resource string) error {
	var cn ciliumv2.CiliumNode
	if err := e.api.Get(within(e.t), client.ObjectKey{Name: node}, &cn); err != nil {
		return err
	}
	base := cn.Spec.IPAM.PodCIDRs[0]
	addr := base[:strings.LastIndex(base, ".")] + suffix
	patch := fmt.Sprintf(`[{"op":"add","path":"/spec/ipam/pool/%s","value":{"owner":%q,"resource":%q}}]`, addr, owner, resource)
	return e.api.Patch(within(e.t), &cn, client.RawPatch(types.JSONPatchType, []byte(patch)))
}
