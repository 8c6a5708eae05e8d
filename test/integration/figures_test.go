// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/metrics/testutil"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/hack/product"
	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// quantile returns an upper bound of the quantile q of the observations with the given labels in a histogram of body, and
// the number of these observations. The bound is that of the bucket that contains the quantile; the maximum of time.Duration
// if there are no observations or the bucket has no upper bound.
func quantile(t *testing.T, body, name string, q float64, with map[string]string) (atMost time.Duration, count float64) {
	t.Helper()
	samples := testutil.NewMetrics()
	if err := testutil.ParseMetrics(body, &samples); err != nil {
		t.Fatal(err)
	}
	// below contains the number of observations up to a bound. Key: the bound in seconds.
	below := map[float64]float64{}
	for _, s := range samples[name+"_bucket"] {
		matches := true
		for k, v := range with {
			matches = matches && string(s.Metric[testutil.LabelName(k)]) == v
		}
		end, err := strconv.ParseFloat(string(s.Metric["le"]), 64)
		if err != nil {
			t.Fatal(err)
		}
		if matches {
			below[end] += float64(s.Value)
		}
	}
	count = below[math.Inf(1)]
	least := math.Inf(1)
	for end, n := range below {
		if n >= q*count && end < least {
			least = end
		}
	}
	if count == 0 || math.IsInf(least, 1) {
		return time.Duration(math.MaxInt64), count
	}
	return time.Duration(least * float64(time.Second)), count
}

// TestG20Figures checks that all addresses of the subnet of a node can be assigned, and that each of more than a thousand
// nodes has a subnet (G20). It logs the time to choose an address and to handle a pod event, and does not check these times,
// because no test machine can guarantee them. TestG3Recycle measures releases. TestG20Figures uses programs without the race
// detector, and does not run in parallel with other tests, which would distort the measurement.
func TestG20Figures(t *testing.T) {
	const nodes, spread = 1001, 200
	e := start(t, options{noScheduler: true, controlPlaneArgs: keepNodesReady})
	metricsPort, securePort := freePort(t), freePort(t)
	var err error
	e.controller, err = product.StartController(e.Cluster, "controller", filepath.Join(bin, "fixedip-controller"), product.ControllerOptions{
		Args: []string{"--enable-leader-election=false", fmt.Sprintf("--metrics-bind-address=127.0.0.1:%d", metricsPort),
			"--cluster-pool-ipv4-cidr=10.60.0.0/24,10.64.0.0/12", "--cluster-pool-ipv4-mask-size=24,23", "--min-free-ips=2", "--max-dynamic-ips=2", "--metrics-per-node=on"},
	})
	e.must(err)
	e.startNode("full", "--max-pods=600", ofGroup("full"))
	e.must(e.WaitNodeReady(within(t), "full"))
	if got := e.subnetsOf("full", 1); got[0] != "10.60.0.0/24" {
		t.Fatalf("node full has the subnet %s, want 10.60.0.0/24", got[0])
	}
	e.scheduler, err = product.StartScheduler(e.Cluster, "scheduler", filepath.Join(bin, "fixedip-scheduler"), product.SchedulerOptions{NoElection: true, SecurePort: securePort})
	e.must(err)

	// A /24 has 254 addresses, of which the node uses two. The test lists the pods to wait for them, because the witness would
	// evaluate all pods after each event.
	const most = 252
	began := time.Now()
	e.create(statefulSet("fills", most, on("full")))
	addresses := map[string]string{}
	e.long("all addresses of a subnet to be in use", func() bool {
		clear(addresses)
		for _, p := range e.pods("fills") {
			if p.Status.Phase == corev1.PodRunning {
				addresses[p.Status.PodIP] = p.Name
			}
		}
		return len(addresses) == most
	})
	t.Logf("%d pods of one node run with fixed addresses after %v", most, time.Since(began).Round(time.Millisecond))
	var full ciliumv2.CiliumNode
	e.must(e.api.Get(within(t), client.ObjectKey{Name: "full"}, &full))
	for i := 1; i <= 254; i++ {
		ip := fmt.Sprintf("10.60.0.%d", i)
		entry, exists := full.Spec.IPAM.Pool[ip]
		if owner := addresses[ip]; !exists || owner != "" && entry.Owner != "default/"+owner || owner == "" && entry.Owner != "" {
			t.Errorf("IP %s is used by pod %q (empty: by none), and its entry (exists: %v) is %+v, want an entry for that pod, or a dynamic entry if no pod uses the IP", ip, owner, exists, entry)
		}
	}
	if n := len(full.Spec.IPAM.Pool); n != 254 {
		t.Errorf("the pool has %d entries, want 254", n)
	}
	e.create(statefulSet("late", 1, on("full")))
	e.podMessage("late-0", "node(s) had no IPv4 address available for a pod with a fixed address")

	began = time.Now()
	e.manyNodes(nodes)
	e.long("all nodes to have a subnet", func() bool {
		var list ciliumv2.CiliumNodeList
		e.must(e.api.List(within(t), &list))
		return len(list.Items) == nodes+1 && !slices.ContainsFunc(list.Items, func(cn ciliumv2.CiliumNode) bool {
			return len(cn.Spec.IPAM.PodCIDRs) != 1 || len(cn.Spec.IPAM.Pool) == 0
		})
	})
	t.Logf("%d nodes that join at once have their subnets and first entries after %v", nodes, time.Since(began).Round(time.Millisecond))
	if n := len(e.disjoint()); n != nodes+1 {
		t.Errorf("%d nodes have subnets, want %d", n, nodes+1)
	}
	e.awaitMetric(metricsPort, "fixedip_subnet_free_addresses", map[string]string{"node": "many-0", "family": "IPv4"}, func(n float64) bool { return n > 255 })

	began = time.Now()
	e.create(statefulSet("spread", spread, on("many")))
	e.long("all pods to be bound", func() bool {
		pods := e.pods("spread")
		return len(pods) == spread && !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName == "" })
	})
	t.Logf("%d pods are placed on %d nodes after %v", spread, nodes, time.Since(began).Round(time.Millisecond))
	began = time.Now()
	e.run(e.pods("spread"))
	e.long("all pods to have FixedIPs", func() bool {
		var fixedIPs v1alpha1.FixedIPList
		e.must(e.api.List(within(t), &fixedIPs, client.InNamespace(namespace)))
		return len(fixedIPs.Items) == most+spread
	})
	t.Logf("the pods run and have FixedIPs after %v", time.Since(began).Round(time.Millisecond))

	scheduler := e.servedOn(securePort)
	body := scheduler.await("the metrics of the scheduler", "/metrics", scheduler.token, func(status int, _ string) bool { return status == http.StatusOK })
	report := func(what, body, name string, with map[string]string) {
		t.Helper()
		median, n := quantile(t, body, name, 0.5, with)
		p99, _ := quantile(t, body, name, 0.99, with)
		t.Logf("%s: at most %v for half and %v for 99 %% of %v observations", what, median, p99, n)
		if n == 0 {
			t.Errorf("%s: got no observations", what)
		}
	}
	for _, point := range []string{"PreFilter", "Filter", "Reserve"} {
		report("duration of "+point+" of FixedIP", body, "scheduler_plugin_execution_duration_seconds", map[string]string{"plugin": "FixedIP", "extension_point": point})
	}
	report("duration of a claim", body, "fixedip_claim_duration_seconds", nil)
	body = e.get(metricsPort)
	report("time of a pod event in the queue", body, "workqueue_queue_duration_seconds", map[string]string{"name": "fixedip"})
	report("duration of a reconcile after a pod event", body, "controller_runtime_reconcile_time_seconds", map[string]string{"controller": "fixedip"})
}

// get returns the metrics of the controller that serves them on a port.
func (e *env) get(port int) string {
	e.t.Helper()
	request, err := http.NewRequestWithContext(within(e.t), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/metrics", port), nil)
	e.must(err)
	response, err := http.DefaultClient.Do(request)
	e.must(err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	e.must(err)
	return string(body)
}

// long is like eventually, with three times the time limit, for steps with thousands of requests.
func (e *env) long(what string, condition func() bool) {
	e.t.Helper()
	ctx, cancel := context.WithTimeoutCause(e.t.Context(), 3*stepTimeout, errors.New("the time limit is over"))
	defer cancel()
	for !condition() {
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			e.t.Fatalf("wait for %s: %v", what, context.Cause(ctx))
		}
	}
}

// pods returns the pods of a workload from the API server.
func (e *env) pods(workload string) []corev1.Pod {
	e.t.Helper()
	var list corev1.PodList
	e.must(e.api.List(within(e.t), &list, client.InNamespace(namespace), client.MatchingLabels{"app": workload}))
	return list.Items
}

// run does the work of kubelets on nodes without a kubelet: it makes pods run with the addresses of their entries.
func (e *env) run(pods []corev1.Pod) {
	e.t.Helper()
	var nodes ciliumv2.CiliumNodeList
	e.must(e.api.List(within(e.t), &nodes))
	// has contains the address of each entry. Key: the owner.
	has := map[string]string{}
	for _, cn := range nodes.Items {
		for ip, entry := range cn.Spec.IPAM.Pool {
			has[entry.Owner] = ip
		}
	}
	api, _ := e.fast()
	var starting errgroup.Group
	starting.SetLimit(16)
	for _, pod := range pods {
		starting.Go(func() error {
			ip := has[namespace+"/"+pod.Name]
			status := fmt.Appendf(nil, `{"status":{"phase":"Running","podIP":%q,"podIPs":[{"ip":%q}]}}`, ip, ip)
			_, err := api.CoreV1().Pods(namespace).Patch(e.t.Context(), pod.Name, types.MergePatchType, status, metav1.PatchOptions{}, "status")
			return err
		})
	}
	e.must(starting.Wait())
}

// fast returns clients with high rate limits.
func (e *env) fast() (kubernetes.Interface, client.Client) {
	e.t.Helper()
	cfg, err := e.RESTConfig(cluster.Admin)
	e.must(err)
	cfg.QPS, cfg.Burst = 5000, 10000
	api, err := client.New(cfg, client.Options{Scheme: e.api.Scheme()})
	e.must(err)
	return kubernetes.NewForConfigOrDie(cfg), api
}

// manyNodes creates n ready nodes without kubelets, many-0 and so on, with their CiliumNodes and first agent reports, with
// many requests at once.
func (e *env) manyNodes(n int) {
	e.t.Helper()
	api, fast := e.fast()
	var making errgroup.Group
	making.SetLimit(16)
	for i := range n {
		making.Go(func() error {
			name := fmt.Sprintf("many-%d", i)
			resources := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("32Gi"), corev1.ResourcePods: resource.MustParse("110")}
			node := &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"group": "many", corev1.LabelHostname: name}},
				Status: corev1.NodeStatus{Capacity: resources, Allocatable: resources, Conditions: []corev1.NodeCondition{
					{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()},
				}},
			}
			if _, err := api.CoreV1().Nodes().Create(e.t.Context(), node, metav1.CreateOptions{}); err != nil {
				return err
			}
			if err := fast.Create(e.t.Context(), &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
				return err
			}
			return report(e.t.Context(), fast, name)
		})
	}
	e.must(making.Wait())
}
