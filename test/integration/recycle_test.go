// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics/testutil"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/hack/product"
	"fixedip.io/fixedip/hack/witness"
)

// cleared watches the pools. The returned function returns the time at which each pod lost its entry. Key: the pod name.
func (e *env) cleared(ctx context.Context) func() map[string]time.Time {
	e.t.Helper()
	cfg, err := e.RESTConfig(cluster.Admin)
	e.must(err)
	watches, err := cache.New(cfg, cache.Options{Scheme: e.api.Scheme(), ByObject: map[client.Object]cache.ByObject{&ciliumv2.CiliumNode{}: {}}})
	e.must(err)
	var mu sync.Mutex
	seen := map[string]time.Time{}
	pods := func(cn *ciliumv2.CiliumNode) map[string]bool {
		owners := map[string]bool{}
		for _, entry := range cn.Spec.IPAM.Pool {
			if pod, ok := strings.CutPrefix(entry.Owner, namespace+"/"); ok {
				owners[pod] = true
			}
		}
		return owners
	}
	go func() {
		if err := watches.Start(ctx); err != nil {
			e.t.Errorf("watch CiliumNodes: %v", err)
		}
	}()
	informer, err := watches.GetInformer(within(e.t), &ciliumv2.CiliumNode{})
	e.must(err)
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{UpdateFunc: func(before, after any) {
		now := pods(after.(*ciliumv2.CiliumNode))
		mu.Lock()
		defer mu.Unlock()
		for pod := range pods(before.(*ciliumv2.CiliumNode)) {
			if !now[pod] {
				seen[pod] = time.Now()
			}
		}
	}})
	e.must(err)
	return func() map[string]time.Time {
		mu.Lock()
		defer mu.Unlock()
		out := make(map[string]time.Time, len(seen))
		for pod, at := range seen {
			out[pod] = at
		}
		return out
	}
}

// apiServerMetrics returns the metrics of the API server.
func (e *env) apiServerMetrics() (testutil.Metrics, error) {
	samples := testutil.NewMetrics()
	cfg, err := e.RESTConfig(cluster.Admin)
	if err != nil {
		return samples, err
	}
	api, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return samples, err
	}
	body, err := api.RESTClient().Get().AbsPath("/metrics").DoRaw(within(e.t))
	if err != nil {
		return samples, err
	}
	return samples, testutil.ParseMetrics(string(body), &samples)
}

// requestCounts returns the number of requests that the API server has completed, without watches. Key: verb and resource.
func (e *env) requestCounts() map[string]int {
	e.t.Helper()
	samples, err := e.apiServerMetrics()
	e.must(err)
	n := map[string]int{}
	for _, s := range samples["apiserver_request_total"] {
		if resource := s.Metric["resource"]; resource != "" && s.Metric["verb"] != "WATCH" {
			n[fmt.Sprintf("%s %s", s.Metric["verb"], resource)] += int(s.Value)
		}
	}
	return n
}

// requestIncrease describes the increase of request counts. It names only keys whose count has increased by at least 10.
func requestIncrease(before, after map[string]int) string {
	const few = 10
	var all []string
	sum := 0
	for _, kind := range slices.SortedFunc(maps.Keys(after), func(a, b string) int { return cmp.Compare(after[b]-before[b], after[a]-before[a]) }) {
		n := after[kind] - before[kind]
		sum += n
		if n >= few {
			all = append(all, fmt.Sprintf("%d %s", n, kind))
		}
	}
	return fmt.Sprintf("%d, of which %s", sum, strings.Join(all, ", "))
}

// awaitLong is like await with three times the time limit, for steps with a thousand writes.
func (e *env) awaitLong(what string, condition func([]witness.Row) bool) {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), 3*stepTimeout)
	defer cancel()
	if _, err := e.witness.Await(ctx, namespace, condition); err != nil {
		e.t.Fatalf("%s: %v", what, context.Cause(ctx))
	}
}

// TestG3Recycle releases a thousand addresses on fifty nodes by deleting their StatefulSets, all of which have pods on many
// nodes. It logs the time from the end of a pod to the release of its entry, and checks that each CiliumNode is written at
// most twice (G3). The nodes end their pods one node after the other, all pods of a node at once.
func TestG3Recycle(t *testing.T) {
	const nodes, perNode, workloads = 50, 20, 20
	e := start(t, options{noScheduler: true, controlPlaneArgs: keepNodesReady})
	var err error
	// The controller runs without the race detector, which would make the test ten times slower.
	e.controller, err = product.StartController(e.Cluster, "controller", filepath.Join(bin, "fixedip-controller"), product.ControllerOptions{
		Args: []string{"--cluster-pool-ipv4-cidr=10.77.0.0/16", "--address-cooldown=1h", "--enable-leader-election=false"},
	})
	e.must(err)
	f := e.fakeNodes(nodes, func(pod string) string {
		var workload, ordinal int
		if _, err := fmt.Sscanf(pod, "load-%d-%d", &workload, &ordinal); err != nil {
			t.Error(err)
		}
		return fakeName((ordinal + workload) % nodes)
	})
	var all []string
	for i := range workloads {
		name := fmt.Sprintf("load-%d", i)
		e.create(statefulSet(name, nodes*perNode/workloads, placedByFakes))
		all = append(all, names(name, nodes*perNode/workloads)...)
	}
	e.awaitLong("wait for all pods to run with FixedIPs in use", func(rows []witness.Row) bool {
		n := 0
		for _, r := range rows {
			if r.Running && r.State == "InUse" {
				n++
			}
		}
		return n == len(all)
	})
	cleared := e.cleared(t.Context())

	f.keepPods(true)
	for i := range workloads {
		e.delete(&appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("load-%d", i)}}, client.PropagationPolicy(metav1.DeletePropagationBackground))
	}
	e.awaitLong("wait for all pods to be terminating", func([]witness.Row) bool {
		for _, name := range all {
			if p := e.witness.Pod(namespace, name); p == nil || p.DeletionTimestamp == nil {
				return false
			}
		}
		return true
	})
	before, requests := e.witness.Generations(), e.requestCounts()
	f.endByNode(t)
	// The test polls, because the witness would build the rows of a thousand pods at each event, which needs much CPU.
	err = wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 3*stepTimeout, true, func(context.Context) (bool, error) { return len(cleared()) == len(all), nil })
	if err != nil {
		t.Fatalf("%d of %d pods have lost their entries, want all: %v", len(cleared()), len(all), err)
	}

	t.Logf("requests to the API server until the last entry was released: %s", requestIncrease(requests, e.requestCounts()))

	var took []time.Duration
	var last, lastCleared time.Time
	for pod, at := range cleared() {
		gone, ok := f.goneAt(pod)
		if !ok {
			t.Fatalf("pod %s lost its entry before the watch showed that the pod was deleted", pod)
		}
		took = append(took, at.Sub(gone))
		if gone.After(last) {
			last = gone
		}
		if at.After(lastCleared) {
			lastCleared = at
		}
	}
	slices.Sort(took)
	writes := map[int64]int{}
	for name, after := range e.witness.Generations() {
		if n := after - before[name]; strings.HasPrefix(name, "fake-") {
			writes[n]++
			if n > 2 {
				t.Errorf("CiliumNode %s was written %d times, want at most 2", name, n)
			}
		}
	}
	at := func(q float64) time.Duration {
		return took[int(q*float64(len(took)-1))].Round(time.Millisecond)
	}
	t.Logf("%d addresses on %d nodes: from the end of a pod to the release of its entry p50 %v, p99 %v, at most %v; from the end of the last pod to the release of the last entry %v; writes of a CiliumNode (writes: nodes) %v",
		len(all), nodes, at(0.5), at(0.99), at(1), lastCleared.Sub(last).Round(time.Millisecond), writes)
	e.awaitLong("wait for all FixedIPs to be deleted", func(rows []witness.Row) bool { return len(rows) == 0 })
	t.Logf("requests to the API server until the last FixedIP was deleted: %s", requestIncrease(requests, e.requestCounts()))
}
