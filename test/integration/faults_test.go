// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
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
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/hack/product"
	"fixedip.io/fixedip/hack/witness"
	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/reclaim"
	"fixedip.io/fixedip/ipam/core/reservation"
)

// runsAtOnce is the number of runs that are executed at once. They mostly wait.
const runsAtOnce = 10

// step is one action of a run. The state after the action has to be the same in each run of the scenario.
type step struct {
	name string
	does func(*faultRun) error
	// pods are all pods that exist after the step: the name, the number of pods that have had that name, and the node, or
	// "nowhere" if the pod does not run.
	pods []string
}

// scenarios contains the steps of each scenario. Key: its name. Together they cause the writes of both programs for a
// workload, and for a node that joins, is lost and is replaced.
var scenarios = map[string][]step{
	"life": {
		{"a node joins", func(r *faultRun) error { return r.join("a", false, "") }, nil},
		{"two pods are placed for the first time", func(r *faultRun) error { return r.deploy("web", 2, whenScaledDelete) }, []string{"web-0 1 a", "web-1 1 a"}},
		{"pod web-0 is replaced", func(r *faultRun) error { return r.deletePod("web-0") }, []string{"web-0 2 a", "web-1 1 a"}},
		{"workload web is scaled down", func(r *faultRun) error { return r.scale("web", 1) }, []string{"web-0 2 a"}},
		{"workload web is deleted", func(r *faultRun) error { return r.undeploy("web") }, nil},
	},
	"moves": {
		{"two nodes join", func(r *faultRun) error { return errors.Join(r.join("a", false, ""), r.join("b", true, "")) }, nil},
		{"two workloads are placed", func(r *faultRun) error {
			return errors.Join(r.deploy("moves", 1, failover("Migrate")), r.deploy("waits", 1, failover("Wait")))
		}, []string{"moves-0 1 a", "waits-0 1 a"}},
		{"pod moves-0 moves to node b", func(r *faultRun) error {
			return errors.Join(r.outOfService("a"), r.cordon("b", false), r.deletePod("moves-0"))
		}, []string{"moves-0 2 b", "waits-0 1 a"}},
		{"workload moves is deleted", func(r *faultRun) error { return r.undeploy("moves") }, []string{"waits-0 1 a"}},
		{"node a is lost", func(r *faultRun) error { return r.lose("a") }, []string{"waits-0 2 nowhere"}},
		{"node c replaces node a", func(r *faultRun) error { return r.join("c", false, "a") }, []string{"waits-0 2 c"}},
		{"workload waits is deleted", func(r *faultRun) error { return r.undeploy("waits") }, nil},
	},
}

func whenScaledDelete(s *appsv1.StatefulSet) {
	metav1.SetMetaDataAnnotation(&s.ObjectMeta, "fixedip.io/when-scaled", "Delete")
}

// faultRun is one run of a scenario, in its own namespace and on its own nodes.
type faultRun struct {
	e    *env
	f    *fakes
	gate *faultGate
	// name is the name of the namespace, and the prefix of the nodes.
	name, scenario string
	fault          fault

	// nodes are the nodes that joined and were not lost, without the prefix of the run.
	nodes []string
	// subnets and addresses contain texts that are equal in each run, such as "the subnet of node a" and "the address of
	// web-0". They name the first node of a subnet and the first pod with an address. Key: the subnet or address.
	subnets, addresses map[string]string
	// incarnations contains the UIDs of the pods with a name, in order. Key: the pod name.
	incarnations map[string][]types.UID
	// workloads contains the names of StatefulSets. Key: the UID.
	workloads map[types.UID]string
	// last is the last state of the run, as describe returns it.
	last string
}

func (r *faultRun) node(name string) string { return r.name + "-" + name }

func (r *faultRun) join(name string, cordoned bool, successorOf string) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: r.node(name), Labels: map[string]string{"run": r.name}}}
	if successorOf != "" {
		node.Labels["fixedip.io/replaces-node"] = r.node(successorOf)
	}
	node.Spec.Unschedulable = cordoned
	r.nodes = append(r.nodes, name)
	return r.f.addNode(r.e.t.Context(), node)
}

func (r *faultRun) statefulSet(name string, replicas int32) *appsv1.StatefulSet {
	sts := statefulSet(name, replicas)
	sts.Namespace = r.name
	// Pods are created one after the other, so that they are placed in the same order in each run.
	sts.Spec.PodManagementPolicy = appsv1.OrderedReadyPodManagement
	sts.Spec.Template.Spec.NodeSelector = map[string]string{"run": r.name}
	return sts
}

func (r *faultRun) deploy(name string, replicas int32, change func(*appsv1.StatefulSet)) error {
	sts := r.statefulSet(name, replicas)
	change(sts)
	err := r.e.api.Create(r.e.t.Context(), sts)
	r.workloads[sts.UID] = name
	return err
}

func (r *faultRun) undeploy(name string) error {
	return r.e.api.Delete(r.e.t.Context(), r.statefulSet(name, 0))
}

func (r *faultRun) scale(name string, replicas int) error {
	return r.e.api.Patch(r.e.t.Context(), r.statefulSet(name, 0), client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)))
}

func (r *faultRun) deletePod(name string) error {
	return r.e.api.Delete(r.e.t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: r.name, Name: name}})
}

func (r *faultRun) cordon(name string, yes bool) error {
	return r.patchNode(name, fmt.Sprintf(`{"spec":{"unschedulable":%t}}`, yes))
}

// outOfService taints a node as out of service, as an administrator does after the node was shut down.
func (r *faultRun) outOfService(name string) error {
	return r.patchNode(name, fmt.Sprintf(`{"spec":{"taints":[{"key":%q,"effect":"NoSchedule"}]}}`, corev1.TaintNodeOutOfService))
}

func (r *faultRun) patchNode(name, patch string) error {
	return r.e.api.Patch(r.e.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: r.node(name)}}, client.RawPatch(types.MergePatchType, []byte(patch)))
}

// lose removes a node for good, with its pods. It deletes the pods itself, because the pod garbage collector would do so only
// after about a minute.
func (r *faultRun) lose(name string) error {
	ctx := r.e.t.Context()
	r.nodes = slices.DeleteFunc(r.nodes, func(n string) bool { return n == name })
	meta := metav1.ObjectMeta{Name: r.node(name)}
	err := errors.Join(r.e.api.Delete(ctx, &corev1.Node{ObjectMeta: meta}), r.e.api.Delete(ctx, &ciliumv2.CiliumNode{ObjectMeta: meta}))
	return errors.Join(err, r.e.api.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(r.name), client.MatchingFields{"spec.nodeName": r.node(name)}, client.GracePeriodSeconds(0)))
}

// through runs the scenario and returns the state after each step. If wants contains the states of a run without a
// fault, through waits after each step until the state is the same. If wants is nil, through waits after each step
// until no write has come for a while. If a step fails, through returns an error and the states after the earlier steps.
func (r *faultRun) through(wants []string) (states []string, err error) {
	ctx := r.e.t.Context()
	if err := r.e.api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: r.name}}); err != nil {
		return nil, err
	}
	r.gate.begin(r.name, r.fault)
	for i, s := range scenarios[r.scenario] {
		if err := s.does(r); err != nil {
			return states, fmt.Errorf("%s: %w", s.name, err)
		}
		if wants == nil {
			if err := r.awaitQuiet(ctx, s.pods); err != nil {
				return states, fmt.Errorf("%s: wait for the last write: %w", s.name, err)
			}
			states = append(states, r.describe(r.e.witness.State(r.name)))
			continue
		}
		// The step gets three times the usual time, because the other runs use the machine at the same time.
		step, cancel := context.WithTimeoutCause(ctx, 3*stepTimeout, errors.New("the state is not reached after "+(3*stepTimeout).String()))
		_, err := r.e.witness.Await(step, r.name, func(rows []witness.Row) bool {
			r.last = r.describe(rows)
			return r.last == wants[i]
		})
		cancel()
		if err != nil {
			return states, fmt.Errorf("%s: got the state\n%s\nwant the state of the run without a fault\n%s", s.name, r.last, wants[i])
		}
		states = append(states, r.last)
	}
	return states, nil
}

// awaitQuiet waits until all nodes have subnets, the pods of the run are those that the argument names (see step.pods), no
// address is in cooldown and no write has come for a while.
func (r *faultRun) awaitQuiet(ctx context.Context, pods []string) error {
	ctx, cancel := context.WithTimeout(ctx, 3*stepTimeout)
	defer cancel()
	return wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(context.Context) (bool, error) {
		rows := r.e.witness.State(r.name)
		state := r.describe(rows)
		busy := strings.Contains(state, "has []") || strings.Contains(state, "has no CiliumNode") || strings.Contains(state, "fixedip.io/cooldown")
		var now []string
		for _, row := range rows {
			where := "nowhere"
			if row.Running {
				where = strings.TrimPrefix(row.Node, r.name+"-")
			}
			now = append(now, fmt.Sprintf("%s %d %s", row.Pod, len(r.incarnations[row.Pod]), where))
		}
		// The controller may report that addresses are no longer in use only when reclaim.Gap has passed since their
		// pod was deleted. So a shorter time without writes does not prove that the run is quiet. The other 3 s are a
		// margin for that write.
		return !busy && slices.Equal(now, pods) && time.Since(r.gate.of(r.name).last) > reclaim.Gap+3*time.Second, nil
	})
}

// describe describes the state of a run, its pods, FixedIPs, subnets and pools, as text that is equal in each run.
func (r *faultRun) describe(rows []witness.Row) string {
	var b strings.Builder
	nodes := map[string]*ciliumv2.CiliumNode{}
	for _, name := range r.nodes {
		cn := r.e.witness.Node(r.node(name))
		if cn == nil {
			fmt.Fprintf(&b, "node %s has no CiliumNode\n", name)
			continue
		}
		nodes[name] = cn
		for _, s := range cn.Spec.IPAM.PodCIDRs {
			if r.subnets[s] == "" {
				r.subnets[s] = "the subnet of node " + name
			}
		}
	}
	for _, row := range rows {
		if row.UID == "" {
			continue
		}
		if !slices.Contains(r.incarnations[row.Pod], types.UID(row.UID)) {
			r.incarnations[row.Pod] = append(r.incarnations[row.Pod], types.UID(row.UID))
		}
		if row.Address != "" && r.addresses[row.Address] == "" {
			r.addresses[row.Address] = "the address of " + row.Pod
		}
		fmt.Fprintf(&b, "pod %s, incarnation %d, on node %q with %q, running: %t\n", row.Pod, len(r.incarnations[row.Pod]), row.Node, row.Address, row.Running)
	}
	for _, fip := range r.e.witness.Records(r.name) {
		fmt.Fprintln(&b, describeFixedIP(fip))
	}
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		fmt.Fprintf(&b, "node %s has %v and %s\n", name, nodes[name].Spec.IPAM.PodCIDRs, r.entries(nodes[name]))
	}
	return r.named(b.String())
}

func describeFixedIP(fip *v1alpha1.FixedIP) string {
	spec, err := json.Marshal(fip.Spec)
	if err != nil {
		return err.Error()
	}
	var conditions []string
	for _, c := range fip.Status.Conditions {
		conditions = append(conditions, fmt.Sprintf("%s is %s because of %s", c.Type, c.Status, c.Reason))
	}
	slices.Sort(conditions)
	return fmt.Sprintf("FixedIP %s, being deleted: %t, expiring: %t, pod UID %s, state %s, spec %s, conditions %v, finalizers %v",
		fip.Name, fip.DeletionTimestamp != nil, fip.Status.ExpiresAt != nil, fip.Status.PodUID, reservation.StateOf(fip), spec, conditions, fip.Finalizers)
}

// entries counts the dynamic entries of a pool and describes the others.
func (r *faultRun) entries(cn *ciliumv2.CiliumNode) string {
	dynamic := 0
	var others []string
	for ip, e := range cn.Spec.IPAM.Pool {
		if e.Owner == "" {
			dynamic++
			continue
		}
		others = append(others, r.named(fmt.Sprintf("%q with the owner %q and the resource %q", ip, e.Owner, e.Resource)))
	}
	slices.Sort(others)
	return fmt.Sprintf("%d dynamic entries, %d others: %s", dynamic, len(others), strings.Join(others, ", "))
}

// named replaces each value that differs between runs with a name that is equal in each run.
func (r *faultRun) named(text string) string {
	var pairs []string
	for a, name := range r.addresses {
		pairs = append(pairs, `"`+a+`"`, name)
	}
	for s, name := range r.subnets {
		pairs = append(pairs, s, name)
	}
	for uid, name := range r.workloads {
		pairs = append(pairs, string(uid), "the UID of "+name)
	}
	for name, uids := range r.incarnations {
		for i, uid := range uids {
			pairs = append(pairs, string(uid), fmt.Sprintf("%s, incarnation %d", name, i+1))
		}
	}
	pairs = append(pairs, r.name, "run")
	return strings.NewReplacer(pairs...).Replace(text)
}

// TestEveryWriteFails makes each write of both programs in the scenarios fail once: the write is not executed, or executed
// and answered with an error, or executed without an answer. The scenario continues, and each step has to reach the same
// state as without the failure. The three ways to fail take turns; FIXEDIP_FAULTS=all makes each write fail in all of them.
// The test is part of make faults and not of make test.
func TestEveryWriteFails(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "audit.log")
	e := start(t, options{noScheduler: true, controlPlaneArgs: append([]string{"--audit-log=" + log}, keepNodesReady...)})
	gate := e.faultGate()
	e.scheduler = e.startScheduler("scheduler", product.SchedulerOptions{Kubeconfig: gate.kubeconfigs[cluster.Scheduler], Movable: true, NoElection: true})
	var err error
	e.controller, err = product.StartController(e.Cluster, "controller", filepath.Join(bin, "race", "fixedip-controller"), product.ControllerOptions{
		Kubeconfig: gate.kubeconfigs[cluster.Controller],
		Args:       []string{"--cluster-pool-ipv4-cidr=10.64.0.0/10", "--address-cooldown=1s", "--orphaned-subnet-grace-period=1h", "--enable-leader-election=false"},
	})
	e.must(err)
	f := e.fakeNodes(0, nil)

	var mu sync.Mutex
	began, runs := time.Now(), []*faultRun{}
	prepare := func(scenario string, by fault) *faultRun {
		mu.Lock()
		defer mu.Unlock()
		r := &faultRun{
			e: e, f: f, gate: gate, name: fmt.Sprintf("run%d", len(runs)), scenario: scenario, fault: by,
			subnets: map[string]string{}, addresses: map[string]string{},
			incarnations: map[string][]types.UID{}, workloads: map[types.UID]string{},
		}
		runs = append(runs, r)
		return r
	}

	// A run of each scenario without a fault provides the writes and the states.
	wants, todo := map[string][]string{}, []*faultRun{}
	for scenario := range maps.Keys(scenarios) {
		todo = append(todo, prepare(scenario, fault{}))
	}
	e.runInParallel(todo, func(r *faultRun) {
		states, err := r.through(nil)
		if err != nil {
			t.Errorf("%s, without a fault: %v", r.scenario, err)
			return
		}
		r.last = states[len(states)-1]
		mu.Lock()
		defer mu.Unlock()
		wants[r.scenario] = states
	})
	if t.Failed() {
		return
	}
	todo = nil
	for _, r := range runs {
		for i, s := range wants[r.scenario] {
			t.Logf("%s: %s\n%s", r.scenario, scenarios[r.scenario][i].name, s)
		}
		for program, writes := range gate.of(r.name).writes {
			t.Logf("%s: %s makes %d writes:\n%s", r.scenario, program, len(writes), strings.Join(writes, "\n"))
			for n := range writes {
				for i, how := range failures {
					if os.Getenv("FIXEDIP_FAULTS") == "all" || i == n%len(failures) {
						todo = append(todo, prepare(r.scenario, fault{program, n + 1, how}))
					}
				}
			}
		}
	}
	done, differing := 0, []*faultRun{}
	e.runInParallel(todo, func(r *faultRun) {
		_, err := r.through(wants[r.scenario])
		mu.Lock()
		defer mu.Unlock()
		done++
		failed := gate.of(r.name).failed
		if err != nil {
			t.Errorf("%s, %s (%s): %v", r.scenario, r.fault, failed, err)
			differing = append(differing, r)
		}
		if done%20 == 0 {
			t.Logf("%d of %d runs after %s", done, len(todo), time.Since(began).Round(time.Second))
		}
	})

	for _, r := range differing {
		t.Logf("%s, %s: these requests created, bound, evicted and deleted pods:\n%s", r.scenario, r.fault, strings.Join(e.podRequests(log, r.name), "\n"))
	}

	// The state of each run must not have changed since the end of the run.
	hit := 0
	for _, r := range runs {
		if gate.of(r.name).failed != "" {
			hit++
		}
		if now := r.describe(e.witness.State(r.name)); now != r.last && !t.Failed() {
			t.Errorf("%s, %s: got the state\n%s\nwant the state at the end of the run\n%s", r.scenario, r.fault, now, r.last)
		}
	}
	t.Logf("in %d of %d runs a write failed; all runs took %s", hit, len(todo), time.Since(began).Round(time.Second))
	// Two writes can be combined, so that a run may make fewer writes than another.
	if hit < len(todo)*9/10 {
		t.Errorf("%d of %d writes failed, want at least 9 of 10", hit, len(todo))
	}
	gate.history.linearizable(t)
}

// podRequests returns the requests in the audit log that created, bound, evicted or deleted pods of a namespace, in order.
func (e *env) podRequests(log, namespace string) (requests []string) {
	e.t.Helper()
	e.audited(log, "", func(event auditv1.Event, resource string) {
		if event.ObjectRef.Namespace != namespace || !slices.Contains([]string{"pods", "pods/binding", "pods/eviction"}, resource) ||
			!slices.Contains([]string{"create", "delete", "deletecollection"}, event.Verb) {
			return
		}
		requests = append(requests, fmt.Sprintf("%s %s %s %s by %s: %d", event.RequestReceivedTimestamp.Format("15:04:05.000"), event.Verb, resource, event.ObjectRef.Name, event.User.Username, event.ResponseStatus.Code))
	})
	return requests
}

// runInParallel calls through for each run, for up to runsAtOnce runs at the same time.
func (e *env) runInParallel(runs []*faultRun, through func(*faultRun)) {
	queue := make(chan *faultRun)
	var working sync.WaitGroup
	for range runsAtOnce {
		working.Go(func() {
			for r := range queue {
				through(r)
			}
		})
	}
	for _, r := range runs {
		queue <- r
	}
	close(queue)
	working.Wait()
}
