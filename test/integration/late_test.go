// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/hack/product"
	"fixedip.io/fixedip/hack/witness"
	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// lateWatch is a proxy in front of the API server for one node. It delays the watch of the agent for its CiliumNode, as if
// the agent or the API server were overloaded. All other requests pass at once, so that the kubelet sees its pods in time.
type lateWatch struct {
	kubeconfig string

	mu sync.Mutex
	// delay is the time for which the proxy holds each event.
	delay time.Duration
	// changed is closed when the delay changes.
	changed chan struct{}
}

// stalled is a delay longer than any test. The agent gets no events until the delay changes.
const stalled = time.Hour

func (l *lateWatch) setDelay(delay time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delay = delay
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *lateWatch) current() (delay time.Duration, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.delay, l.changed
}

// lateWatch starts the proxy for a node. The node must be started with the kubeconfig of the proxy.
func (e *env) lateWatch(node string, delay time.Duration) *lateWatch {
	e.t.Helper()
	l := &lateWatch{delay: delay, changed: make(chan struct{})}
	l.kubeconfig = e.proxy(cluster.SimNode, "late-"+node, func(w http.ResponseWriter, r *http.Request, onward http.Handler) {
		if !strings.HasSuffix(r.URL.Path, "/ciliumnodes") || r.URL.Query().Get("watch") == "" {
			onward.ServeHTTP(w, r)
			return
		}
		delayed := &delayedResponse{ResponseWriter: w, ctx: r.Context(), watch: l, chunks: make(chan chunk, 10_000)}
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			delayed.send()
		}()
		// The goroutine is stopped in a deferred function, because onward panics if either side closes the connection.
		defer func() {
			close(delayed.chunks)
			<-sent
		}()
		onward.ServeHTTP(delayed, r)
	})
	return l
}

// delayedResponse is a response whose body is sent in order, each chunk after the delay.
type delayedResponse struct {
	http.ResponseWriter
	ctx    context.Context
	watch  *lateWatch
	chunks chan chunk
}

type chunk struct {
	data     []byte
	received time.Time
}

// WriteHeader sends the header without delay, so that the watch is established at once.
func (h *delayedResponse) WriteHeader(status int) {
	h.ResponseWriter.WriteHeader(status)
	h.flush()
}

func (h *delayedResponse) Write(data []byte) (int, error) {
	select {
	case h.chunks <- chunk{bytes.Clone(data), time.Now()}:
		return len(data), nil
	case <-h.ctx.Done():
		return 0, context.Cause(h.ctx)
	}
}

// send writes the chunks, each after the delay. It returns when all are written or the watch is closed.
func (h *delayedResponse) send() {
	for c := range h.chunks {
		if !h.due(c) {
			return
		}
		if _, err := h.ResponseWriter.Write(c.data); err != nil {
			return
		}
		h.flush()
	}
}

// due waits until the delay of a chunk is over. It returns false if the watch is closed before that.
func (h *delayedResponse) due(c chunk) bool {
	for {
		delay, changed := h.watch.current()
		select {
		case <-time.After(time.Until(c.received.Add(delay))):
			return true
		case <-changed:
		case <-h.ctx.Done():
			return false
		}
	}
}

func (h *delayedResponse) flush() {
	// A closed connection needs no flush.
	_ = http.NewResponseController(h.ResponseWriter).Flush()
}

// startLateNode starts a node whose agent sees changes of its CiliumNode with a delay.
func (e *env) startLateNode(name string, delay time.Duration, args ...string) *lateWatch {
	e.t.Helper()
	l := e.lateWatch(name, delay)
	e.startNode(name, append([]string{"--kubeconfig=" + l.kubeconfig}, args...)...)
	return l
}

// startLateNodes starts late nodes (see startLateNode), the controller, our scheduler and the default scheduler. It returns
// the watches of the nodes. Leader election is disabled, because on a slow machine a program may lose its Lease and exit.
func (e *env) startLateNodes(nodes []string, delay time.Duration, controllerArgs []string, nodeArgs ...string) []*lateWatch {
	e.t.Helper()
	var late []*lateWatch
	for _, n := range nodes {
		late = append(late, e.startLateNode(n, delay, nodeArgs...))
	}
	e.startController("controller", append([]string{"--enable-leader-election=false"}, controllerArgs...)...)
	e.scheduler = e.startScheduler("scheduler", product.SchedulerOptions{NoElection: true})
	e.startStockScheduler()
	for _, n := range nodes {
		e.must(e.WaitNodeReady(e.whileAllRun(), n))
	}
	return late
}

const stockScheduler = "default-scheduler"

// startStockScheduler starts the default scheduler: our scheduler program with a configuration without the FixedIP plugin.
func (e *env) startStockScheduler() {
	e.t.Helper()
	config := filepath.Join(e.Dir(), stockScheduler+".yaml")
	e.must(os.WriteFile(config, fmt.Appendf(nil, `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: %s}
leaderElection: {leaderElect: false}
`, e.Kubeconfig(cluster.Admin)), 0o600))
	_, err := e.StartProcess(stockScheduler, filepath.Join(bin, "race", "fixedip-scheduler"), "--config="+config, "--secure-port=0", "-v=2")
	e.must(err)
}

// stockPods creates n unreserved pods for the default scheduler and returns their names.
func (e *env) stockPods(prefix string, n int) []string {
	e.t.Helper()
	pods := names(prefix, n)
	for _, name := range pods {
		e.create(unreservedPod(name, stockScheduler, ""))
	}
	return pods
}

// asReserved returns the rows of the pods that run with their reserved addresses. all contains the names of the pods that may
// be in the result. Key: the pod name.
func asReserved(all []string, rows []witness.Row) map[string]witness.Row {
	found := map[string]witness.Row{}
	for _, r := range rows {
		if slices.Contains(all, r.Pod) && r.Running && r.State == "InUse" && r.UID != "" && slices.Contains(r.Entries, r.Node+"/"+r.Address) {
			found[r.Pod] = r
		}
	}
	return found
}

// mismatched counts the FixedIPs whose condition AsReserved has the status and, unless reason is empty, the reason.
func (e *env) mismatched(status metav1.ConditionStatus, reason string) int {
	n := 0
	for _, f := range e.witness.Records(namespace) {
		c := meta.FindStatusCondition(f.Status.Conditions, v1alpha1.ConditionAsReserved)
		if c != nil && c.Status == status && (reason == "" || c.Reason == reason) {
			n++
		}
	}
	return n
}

// wrongAddresses counts the wrong uses of addresses (witness.WrongUse) by pods whose names have one of the prefixes. It
// fails the test for each wrong use, by any pod, that affects other pods (see WrongUse.Others).
func (e *env) wrongAddresses(prefixes ...string) int {
	e.t.Helper()
	n := 0
	for _, s := range e.witness.WrongUses() {
		if len(s.Others) > 0 {
			e.t.Error(s)
		}
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(s.Pod, namespace+"/"+p) }) {
			n++
		}
	}
	return n
}

// TestLateAgents checks pods that get other addresses than the claimed ones, because agents see the claims late. The
// pods are restarted until they run with their reserved addresses, at most --max-concurrent-restarts of them at a time. No
// two pods ever have the same address. 40 pods of our scheduler run among 100 pods of the default scheduler, which take
// dynamic entries. Another 9 pods start while the agents get no events.
func TestLateAgents(t *testing.T) {
	t.Parallel()
	const workloads, stock, unseen, maxRestarts, delay = 20, 100, 9, 40, 3 * time.Second
	port := freePort(t)
	e := startCluster(t)
	// The test makes pods run without their reserved addresses for a while, which the witness reports.
	e.provoked = func(violation string) bool { return strings.Contains(violation, "but its FixedIP reserves") }
	// The cooldown is the default of one minute, which is longer than delay.
	late := e.startLateNodes(threeNodes, delay, []string{"--cluster-pool-ipv4-cidr=10.240.0.0/16", "--min-free-ips=100", "--mismatch-grace-period=4s",
		fmt.Sprintf("--max-concurrent-restarts=%d", maxRestarts), fmt.Sprintf("--metrics-bind-address=127.0.0.1:%d", port)})

	var all []string
	awaitReserved := func() map[string]witness.Row {
		t.Helper()
		rows := e.await("wait for all pods to run with their reserved addresses", func(rows []witness.Row) bool {
			if n := e.mismatched(metav1.ConditionFalse, "Restarting"); n > maxRestarts {
				t.Errorf("%d pods are restarting at the same time, want at most %d", n, maxRestarts)
			}
			return len(asReserved(all, rows)) == len(all) && e.mismatched(metav1.ConditionFalse, "") == 0
		})
		return asReserved(all, rows)
	}
	for i := range workloads {
		name := fmt.Sprintf("web%d", i)
		e.create(statefulSet(name, 2))
		all = append(all, names(name, 2)...)
	}
	theirs := e.stockPods("theirs", stock)
	awaitReserved()
	whileDelayed := e.mismatched(metav1.ConditionTrue, "AsReserved")
	e.awaitPods(theirs...)

	// On a slow machine pods may start more than 3 s after their claims, so that the delay has no effect. Agents that get no
	// events assign other addresses on any machine.
	for _, l := range late {
		l.setDelay(stalled)
	}
	for i := range unseen {
		name := fmt.Sprintf("unseen%d", i)
		e.create(statefulSet(name, 1))
		all = append(all, name+"-0")
	}
	e.await("wait for a pod that runs with another address than the reserved one", func([]witness.Row) bool {
		return e.mismatched(metav1.ConditionFalse, "WrongAddress") > 0
	})
	for _, l := range late {
		l.setDelay(delay)
	}
	before := awaitReserved()
	var restarts float64
	e.awaitMetric(port, "fixedip_restarts_total", map[string]string{"result": "evicted"}, func(v float64) bool { restarts = v; return v > 0 })
	wrong := e.wrongAddresses("web", "unseen")
	t.Logf("of %d pods %d first ran with another address than the reserved one, %d of them while the delay of the agents was %s; restarts: %.0f",
		len(all), e.mismatched(metav1.ConditionTrue, "AsReserved"), whileDelayed, delay, restarts)

	// The agents have now seen all entries, so every pod gets its address at once.
	e.deletePods(all...)
	e.sameAddresses(before, e.awaitRunning(before, all...))
	if again := e.wrongAddresses("web", "unseen"); again > wrong {
		t.Errorf("%d recreated pods got another address than the reserved one from agents that had seen the entries, want 0", again-wrong)
	}
}

// TestLateAgentOfSlots checks a Deployment on a node with a late agent. The addresses that were claimed for its pods
// become its slots, and its pods run with these addresses in the end. The scheduler writes a new claim for each pod that
// takes over a slot, so a restart helps only if the agent sees that claim in time.
func TestLateAgentOfSlots(t *testing.T) {
	t.Parallel()
	e := start(t, options{controllerArgs: append([]string{"--mismatch-grace-period=4s", "--workload-kind=" + deployments}, defaultPool...),
		workloads: "[{apiGroup: apps, kind: Deployment, identity: Slot}]"})
	e.provoked = func(violation string) bool { return strings.Contains(violation, "but its FixedIP reserves") }
	late := e.startLateNode("node-1", 3*time.Second)
	e.must(e.WaitNodeReady(e.whileAllRun(), "node-1"))

	e.create(deployment("shop", 3))
	slots := e.awaitSlots(3)
	e.await("wait for a pod to have another address", func([]witness.Row) bool { return e.mismatched(metav1.ConditionFalse, "WrongAddress") > 0 })
	// With the delay the agent would give each restarted pod a wrong address again.
	late.setDelay(0)
	first := map[string]witness.Row{}
	e.await("wait for all pods to run with the addresses of the slots", func(rows []witness.Row) bool {
		clear(first)
		for _, r := range rows {
			if r.UID != "" && r.Running && r.State == "InUse" && slots["node-1/"+r.Address] {
				first[r.Pod] = r
			}
		}
		return len(first) == 3 && e.mismatched(metav1.ConditionFalse, "") == 0
	})
	if e.wrongAddresses("shop-") == 0 {
		t.Error("no pod got another address than the claimed one, so the late agent was not tested")
	}

	late.setDelay(3 * time.Second)
	replaced := map[string]bool{}
	replace := func(name string) {
		replaced[name] = true
		e.deletePods(name)
	}
	for name := range first {
		replace(name)
	}
	e.await("wait for a new pod to run with an address that is not its slot", func(rows []witness.Row) bool {
		if e.mismatched(metav1.ConditionFalse, "WrongAddress") > 0 {
			return true
		}
		// A pod that got the address of its slot by chance is replaced.
		for _, r := range rows {
			if r.UID != "" && r.Running && r.State == "InUse" && slots["node-1/"+r.Address] && !replaced[r.Pod] {
				replace(r.Pod)
			}
		}
		return false
	})
	late.setDelay(0)
	var second map[string]witness.Row
	e.await("wait for all pods to run with the addresses of the slots", func(rows []witness.Row) bool {
		second = map[string]witness.Row{}
		for _, r := range rows {
			if r.UID == "" || replaced[r.Pod] || !r.Running || r.State != "InUse" || !slots["node-1/"+r.Address] {
				return false
			}
			second[r.Pod] = r
		}
		return len(second) == 3 && e.mismatched(metav1.ConditionFalse, "") == 0
	})
	if now := places(second); !maps.Equal(now, slots) {
		t.Errorf("the pods run with %v, want the addresses of the slots %v", now, slots)
	}
	if now := e.awaitSlots(3); !maps.Equal(now, slots) {
		t.Errorf("the slots are %v after all pods were replaced, want %v", now, slots)
	}
	if e.mismatched(metav1.ConditionTrue, "AsReserved") == 0 {
		t.Error("no FixedIP has the condition AsReserved=True with the reason AsReserved")
	}
}
