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
	// killsBetweenLooks is the number of kills between two checks that all pods are back.
	killsBetweenLooks = 10
	// controlPlaneEvery is how many kills there are for each kill of the control plane.
	controlPlaneEvery = 10
)

// churn changes workloads at random. Failed changes are not retried, because the API server may have been killed.
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

// turn makes one change.
func (c *churn) turn(ctx context.Context) {
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
		what = "deleted, or made anew"
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
				c.turn(ctx)
			case <-ctx.Done():
				return
			}
		}
	})
	f()
	stop()
	churning.Wait()
}

// settle uncordons all nodes, creates the deleted workloads again, and returns the rows of all wanted pods when they run.
func (c *churn) settle() map[string]witness.Row {
	e := c.e
	e.t.Helper()
	e.cordonOthers(threeNodes, "")
	var wanted []string
	podsOf := map[string][]string{}
	for name := range churned {
		sts := c.workload(name)
		err := e.api.Create(within(e.t), sts)
		for apierrors.IsAlreadyExists(err) {
			if err = e.api.Get(within(e.t), client.ObjectKeyFromObject(sts), sts); err == nil && sts.DeletionTimestamp != nil {
				err = e.api.Create(within(e.t), c.workload(name))
			}
		}
		e.must(err)
		podsOf[name] = names(name, int(*sts.Spec.Replicas))
		wanted = append(wanted, podsOf[name]...)
	}
	stop := c.wake(podsOf)
	defer stop()
	running := e.awaitRunning(nil, wanted...)
	e.await("wait for all others to be gone", func(rows []witness.Row) bool {
		return !slices.ContainsFunc(rows, func(r witness.Row) bool { return r.UID != "" && !slices.Contains(wanted, r.Pod) })
	})
	for pod, r := range running {
		if fip := e.witness.Record(namespace, pod); !slices.Equal(fip.Spec.IPs, []string{r.Address}) || !slices.Equal(e.witness.Entries(namespace, pod), []string{r.Node + "/" + r.Address}) {
			e.t.Errorf("pod %+v has the record %+v and the entries %v", r, fip.Spec, e.witness.Entries(namespace, pod))
		}
	}
	return running
}

// wake makes the controllers of Kubernetes process workloads that lack pods, until stop is called. If pods of a former
// workload with the name were in the way, these controllers back off for up to a quarter of an hour, but react to a change
// of the workload at once.
func (c *churn) wake(podsOf map[string][]string) (stop func()) {
	ctx, cancel := context.WithCancel(c.e.t.Context())
	var waking sync.WaitGroup
	waking.Go(func() {
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
				if c.e.api.Patch(ctx, c.workload(name), client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{"woken":%q}}}`, time.Now()))) == nil {
					c.done["woken"]++
				}
			}
		}
	})
	return func() {
		cancel()
		waking.Wait()
	}
}

// marker returns a pod that no scheduler places.
func marker() *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "marker"}}
	pod.Spec = statefulSet(pod.Name, 0, byNobody).Spec.Template.Spec
	return pod
}

// caughtUp waits until the witness watches again and has seen everything, including a new write of each kind.
func (e *env) caughtUp() {
	e.t.Helper()
	marks := []client.Object{marker(), &ciliumv2.CiliumNode{}, &v1alpha1.FixedIP{}}
	marks[1].SetName(threeNodes[0])
	marks[2].SetName("keeps-0")
	marks[2].SetNamespace(namespace)
	for _, obj := range marks {
		e.eventually("a mark to be written", func() bool {
			return e.api.Patch(e.t.Context(), obj, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{"marked":%q}}}`, time.Now()))) == nil
		})
	}
	e.eventually("the witness to see all that stands", func() bool {
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

// agentsWatch waits until the agents of this many nodes watch their CiliumNodes again. An agent that does not may give a pod
// another address, which is corrected later (see the tests of late agents) and would count as a violation here. Only agents
// watch a CiliumNode by name.
func (e *env) agentsWatch(nodes int) {
	e.t.Helper()
	e.eventually("the agents to watch their CiliumNodes", func() bool {
		samples, err := e.served()
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
			e.t.Fatalf("%s has ended, and not because it could not start: %s\n%s", p.Name, state, p.LogTail())
		}
		e.must(p.Restart(within(e.t)))
	}
}

// fromEnv returns the number in an environment variable, or otherwise if it is not set.
func fromEnv(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// TestKilledAtRandom kills scheduler, controller and sometimes API server and etcd at random moments while pods are created
// and deleted. It checks that no two pods ever share an address, that no address is lost, that all pods come back, and that
// nothing is left after the workloads are deleted. FIXEDIP_KILLS is the number of kills. FIXEDIP_SEED is the seed, which
// does not determine at which instruction of a program a kill happens.
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
	before := c.settle()
	killed, began := map[string]int{}, time.Now()
	for n := 0; n < kills; {
		c.during(func() {
			for range min(killsBetweenLooks, kills-n) {
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
				// The witness cannot judge events that it does not see in order, so that no request of our programs passes
				// until the witness and the agents watch again.
				e.must(victim.Kill())
				gate.shut(func() {
					e.must(victim.Restart(within(t)))
					e.caughtUp()
					e.agentsWatch(len(threeNodes))
				})
				e.startAgain(e.scheduler, e.controller)
			}
		})
		now := c.settle()
		for _, pod := range names("keeps", 4) {
			if now[pod].Address != before[pod].Address || now[pod].Node != before[pod].Node {
				t.Errorf("pod %s had %s on %s, and after %d kills it has %s on %s", pod, before[pod].Address, before[pod].Node, n, now[pod].Address, now[pod].Node)
			}
		}
		for _, pod := range names("moves", 2) {
			if now[pod].Address != before[pod].Address {
				t.Errorf("pod %s had %s, and after %d kills it has %s", pod, before[pod].Address, n, now[pod].Address)
			}
		}
		t.Logf("%d of %d kills, %s: all pods are back, %v", n, kills, time.Since(began).Round(time.Second), killed)
		if t.Failed() || len(e.witness.Violations()) > 0 {
			break
		}
	}
	for name := range churned {
		e.delete(c.workload(name))
	}
	e.await("wait for nothing to be left", func(rows []witness.Row) bool { return len(rows) == 0 })
	e.must(e.witness.AwaitPools(within(t), func(p witness.Pool) bool { return p.Fixed == 0 && p.Resting == 0 && p.Moving == 0 }))
	t.Logf("killed: %v; the churn: %v; %d pods ran; %s", killed, c.done, e.witness.Incarnations(), time.Since(began).Round(time.Second))
	gate.history.linearizable(t)
}
