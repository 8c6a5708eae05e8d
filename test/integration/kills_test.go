// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/hack/product"
	"fixedip.io/fixedip/hack/witness"
	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

const (
	// killsBetweenChecks is the number of kills between two checks that all pods run.
	killsBetweenChecks = 10
	// controlPlaneEvery is the number of kills of which one kills the control plane.
	controlPlaneEvery = 10
)

// churn changes workloads and cordons nodes at random. Failed changes are not retried, because the API server may have been
// killed.
type churn struct {
	e *env
	// random is not shared, so that the changes do not depend on when programs are killed.
	random *rand.Rand
	// done counts the changes. Key: the kind of change.
	done map[string]int
}

// churned contains the StatefulSets of the churn, and the changes that each allows. Key: the name.
var churned = map[string]struct {
	change                 func(*appsv1.StatefulSet)
	replicas               int32
	scaled, deleted, moved bool
}{
	"keeps":   {change: failover("Wait"), replicas: 4},
	"scaled":  {change: failover("Wait"), replicas: 3, scaled: true},
	"shrinks": {change: whenScaledDelete, replicas: 3, scaled: true},
	"goes":    {change: failover("Wait"), replicas: 2, deleted: true},
	"moves":   {change: failover("Migrate"), replicas: 2, moved: true},
}

func (c *churn) workload(name string) *appsv1.StatefulSet {
	return statefulSet(name, churned[name].replicas, churned[name].change)
}

// changeOne makes one random change, and counts it in done unless it fails.
func (c *churn) changeOne(ctx context.Context) {
	all := slices.Sorted(maps.Keys(churned))
	name := all[c.random.IntN(len(all))]
	about := churned[name]
	var what string
	var err error
	switch draw := c.random.IntN(10); {
	case draw < 2 && about.scaled:
		what = "scaled"
		err = c.e.api.Patch(ctx, c.workload(name), client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, c.random.Int32N(about.replicas+2))))
	case draw < 2 && about.deleted:
		what = "deleted or created again"
		if err = c.e.api.Delete(ctx, c.workload(name)); apierrors.IsNotFound(err) {
			err = c.e.api.Create(ctx, c.workload(name))
		}
	case draw < 4 && about.moved:
		what = "cordoned"
		node, yes := threeNodes[c.random.IntN(len(threeNodes))], c.random.IntN(2) == 0
		err = c.e.api.Patch(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, yes)))
	case draw < 3:
		what = "rolled"
		err = c.e.api.Patch(ctx, c.workload(name), client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"template":{"metadata":{"annotations":{"roll":"%d"}}}}}`, c.random.Int())))
	default:
		what = "pod deleted"
		err = c.e.api.Delete(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s-%d", name, c.random.Int32N(about.replicas))}})
	}
	if err == nil {
		c.done[what]++
	}
}

// during runs the churn while f runs, and returns when both have ended.
func (c *churn) during(f func()) {
	ctx, stop := context.WithCancel(c.e.t.Context())
	var churning sync.WaitGroup
	churning.Go(func() {
		pace := time.NewTicker(200 * time.Millisecond)
		defer pace.Stop()
		for {
			select {
			case <-pace.C:
				c.changeOne(ctx)
			case <-ctx.Done():
				return
			}
		}
	})
	f()
	stop()
	churning.Wait()
}

// awaitWanted uncordons all nodes, creates the deleted workloads again, and waits until all wanted pods run and no other
// pods exist. It returns the rows of the wanted pods. Key: the pod name.
func (c *churn) awaitWanted() map[string]witness.Row {
	e := c.e
	e.t.Helper()
	e.cordonOthers(threeNodes, "")
	var wanted []string
	podsOf := map[string][]string{}
	for name := range churned {
		var sts *appsv1.StatefulSet
		e.eventually("StatefulSet "+name+" to exist and not be deleted", func() bool {
			sts = c.workload(name)
			err := e.api.Create(within(e.t), sts)
			if apierrors.IsAlreadyExists(err) {
				err = e.api.Get(within(e.t), client.ObjectKeyFromObject(sts), sts)
			}
			e.must(client.IgnoreNotFound(err))
			return err == nil && sts.DeletionTimestamp == nil
		})
		podsOf[name] = names(name, int(*sts.Spec.Replicas))
		wanted = append(wanted, podsOf[name]...)
	}
	stop := c.touchWorkloads(podsOf)
	defer stop()
	running := e.awaitRunning(nil, wanted...)
	e.await("wait for all other pods to be deleted", func(rows []witness.Row) bool {
		return !slices.ContainsFunc(rows, func(r witness.Row) bool { return r.UID != "" && !slices.Contains(wanted, r.Pod) })
	})
	for pod, r := range running {
		if fip := e.witness.Record(namespace, pod); !slices.Equal(fip.Spec.IPs, []string{r.Address}) || !slices.Equal(e.witness.Entries(namespace, pod), []string{r.Node + "/" + r.Address}) {
			e.t.Errorf("pod %+v has the FixedIP %+v and the entries %v, want its address in both", r, fip.Spec, e.witness.Entries(namespace, pod))
		}
	}
	return running
}

// touchWorkloads annotates workloads that lack pods until stop is called, so that the controllers of Kubernetes process
// them at once. If pods of a former workload have the names, these controllers cannot create the pods of a workload, and
// retry with a backoff of up to 1000 s.
func (c *churn) touchWorkloads(podsOf map[string][]string) (stop func()) {
	ctx, cancel := context.WithCancel(c.e.t.Context())
	var touching sync.WaitGroup
	touching.Go(func() {
		pace := time.NewTicker(10 * time.Second)
		defer pace.Stop()
		for {
			select {
			case <-pace.C:
			case <-ctx.Done():
				return
			}
			for name, pods := range podsOf {
				if !slices.ContainsFunc(pods, func(pod string) bool { return c.e.witness.Pod(namespace, pod) == nil }) {
					continue
				}
				if c.e.api.Patch(ctx, c.workload(name), client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{"touched":%q}}}`, time.Now()))) == nil {
					c.done["touched"]++
				}
			}
		}
	})
	return func() {
		cancel()
		touching.Wait()
	}
}

// marker returns a pod that no scheduler places. awaitWitness annotates it.
func marker() *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "marker"}}
	pod.Spec = statefulSet(pod.Name, 0, placedByFakes).Spec.Template.Spec
	return pod
}

// awaitWitness waits until the witness watches again and has seen all objects, including a new write of each kind.
func (e *env) awaitWitness() {
	e.t.Helper()
	written := []client.Object{marker(), &ciliumv2.CiliumNode{}, &v1alpha1.FixedIP{}}
	written[1].SetName(threeNodes[0])
	written[2].SetName("keeps-0")
	written[2].SetNamespace(namespace)
	for _, obj := range written {
		e.eventually("an annotation of the marker pod, a CiliumNode or a FixedIP to be written", func() bool {
			return e.api.Patch(e.t.Context(), obj, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{"marked":%q}}}`, time.Now()))) == nil
		})
	}
	e.eventually("the witness to see all objects", func() bool {
		var pods corev1.PodList
		var nodes ciliumv2.CiliumNodeList
		var records v1alpha1.FixedIPList
		for _, list := range []client.ObjectList{&pods, &nodes, &records} {
			if err := e.api.List(e.t.Context(), list); err != nil {
				return false
			}
		}
		behind := func(obj client.Object) bool {
			now, err := strconv.ParseUint(obj.GetResourceVersion(), 10, 64)
			return err != nil || e.witness.Seen(obj) < now
		}
		seen := len(e.witness.Records(namespace)) == len(records.Items)
		for i := range pods.Items {
			seen = seen && !behind(&pods.Items[i])
		}
		for i := range nodes.Items {
			seen = seen && !behind(&nodes.Items[i])
		}
		for i := range records.Items {
			seen = seen && !behind(&records.Items[i])
		}
		return seen
	})
}

// awaitAgentWatches waits until the agents of this many nodes watch their CiliumNodes again. Without its watch, an
// agent may give a pod another address. The controller corrects that later (see TestLateAgents), but the witness would
// report a violation. Only agents watch a CiliumNode by name.
func (e *env) awaitAgentWatches(nodes int) {
	e.t.Helper()
	e.eventually("the agents to watch their CiliumNodes", func() bool {
		samples, err := e.apiServerMetrics()
		watches := 0
		for _, s := range samples["apiserver_longrunning_requests"] {
			if s.Metric["verb"] == "WATCH" && s.Metric["resource"] == "ciliumnodes" && s.Metric["scope"] == "resource" {
				watches += int(s.Value)
			}
		}
		return err == nil && watches == nodes
	})
}

// startAgain restarts programs that exited because the API server was down at their start, as a kubelet would.
func (e *env) startAgain(programs ...*cluster.Process) {
	e.t.Helper()
	for _, p := range programs {
		if p.Running() {
			continue
		}
		if state := p.ExitState(); state != "exit status 1" {
			e.t.Fatalf("%s ended with %s, want exit status 1 of a start without the API server\n%s", p.Name, state, p.LogTail())
		}
		e.must(p.Restart(within(e.t)))
	}
}

// fromEnv returns the number in an environment variable, or fallback if the variable is not set.
func fromEnv(t *testing.T, name string, fallback uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return fallback
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("parse %s: %v", name, err)
	}
	return n
}

// TestKilledAtRandom kills scheduler, controller and sometimes API server and etcd at random moments while pods are
// created and deleted. It checks that no two pods ever share an address, that no address is lost, and that all pods run
// again. After the workloads are deleted, nothing may be left. FIXEDIP_KILLS is the number of kills. FIXEDIP_SEED is
// the seed; if it is 0 or not set, the test chooses one. The seed does not determine at which instruction of a program a
// kill happens.
func TestKilledAtRandom(t *testing.T) {
	t.Parallel()
	kills := int(fromEnv(t, "FIXEDIP_KILLS", 10))
	seed := fromEnv(t, "FIXEDIP_SEED", 0)
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("FIXEDIP_KILLS=%d FIXEDIP_SEED=%d", kills, seed)
	random := rand.New(rand.NewPCG(seed, 0))

	e := start(t, options{noScheduler: true})
	gate := e.faultGate()
	for _, n := range threeNodes {
		e.startNode(n)
	}
	// Without leader election a restarted program works at once, so that the next kill can interrupt it.
	e.scheduler = e.startScheduler("scheduler", product.SchedulerOptions{Kubeconfig: gate.kubeconfigs[cluster.Scheduler], Movable: true, NoElection: true})
	var err error
	e.controller, err = product.StartController(e.Cluster, "controller", filepath.Join(bin, "race", "fixedip-controller"), product.ControllerOptions{
		Kubeconfig: gate.kubeconfigs[cluster.Controller], Args: append(slices.Clone(defaultPool), "--enable-leader-election=false"),
	})
	e.must(err)
	for _, n := range threeNodes {
		e.must(e.WaitNodeReady(e.whileAllRun(), n))
	}

	e.create(marker())
	c := &churn{e: e, random: rand.New(rand.NewPCG(seed, 1)), done: map[string]int{}}
	before := c.awaitWanted()
	killed, began := map[string]int{}, time.Now()
	for n := 0; n < kills; {
		c.during(func() {
			for range min(killsBetweenChecks, kills-n) {
				n++
				victim := []*cluster.Process{e.scheduler, e.controller}[random.IntN(2)]
				if n%controlPlaneEvery == controlPlaneEvery/2 {
					victim = e.ControlPlane()
				}
				moment := time.NewTimer(time.Duration(random.Int64N(int64(2 * time.Second))))
				<-moment.C
				killed[victim.Name]++
				if victim != e.ControlPlane() {
					e.must(victim.Kill())
					e.must(victim.Restart(within(t)))
					continue
				}
				// The witness cannot judge events that it does not see in order. So no request of our programs passes until
				// the witness and the agents watch again.
				e.must(victim.Kill())
				gate.shut(func() {
					e.must(victim.Restart(within(t)))
					e.awaitWitness()
					e.awaitAgentWatches(len(threeNodes))
				})
				e.startAgain(e.scheduler, e.controller)
			}
		})
		now := c.awaitWanted()
		for _, pod := range names("keeps", 4) {
			if now[pod].Address != before[pod].Address || now[pod].Node != before[pod].Node {
				t.Errorf("pod %s has %s on node %s after %d kills, want %s on node %s", pod, now[pod].Address, now[pod].Node, n, before[pod].Address, before[pod].Node)
			}
		}
		for _, pod := range names("moves", 2) {
			if now[pod].Address != before[pod].Address {
				t.Errorf("pod %s has %s after %d kills, want %s", pod, now[pod].Address, n, before[pod].Address)
			}
		}
		t.Logf("%d of %d kills after %s: all pods run; killed: %v", n, kills, time.Since(began).Round(time.Second), killed)
		if t.Failed() || len(e.witness.Violations()) > 0 {
			break
		}
	}
	for name := range churned {
		e.delete(c.workload(name))
	}
	e.await("wait for all pods, FixedIPs and entries to be deleted", func(rows []witness.Row) bool { return len(rows) == 0 })
	e.must(e.witness.AwaitPools(within(t), func(p witness.Pool) bool { return p.Fixed == 0 && p.Other == 0 && p.Moving == 0 }))
	t.Logf("killed: %v; the churn: %v; %d pods ran; %s", killed, c.done, e.witness.Incarnations(), time.Since(began).Round(time.Second))
	gate.history.linearizable(t)
}
