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

// lateWatch is a proxy in front of the API server for one node. It delays the watch of the agent for its CiliumNode,
// as a loaded agent or API server does; everything else passes at once, so that the kubelet knows its pods in time.
type lateWatch struct {
	kubeconfig string

	mu sync.Mutex
	// delay is how much later than sent by the API server the agent gets pending events.
	delay time.Duration
	// changed is closed when the delay changes.
	changed chan struct{}
}

// heldUpForAll is a delay longer than any test: the agent gets no events until the delay changes.
const heldUpForAll = time.Hour

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

func (e *env) lateWatch(node string, delay time.Duration) *lateWatch {
	e.t.Helper()
	l := &lateWatch{delay: delay, changed: make(chan struct{})}
	l.kubeconfig = e.proxy(cluster.SimNode, "late-"+node, func(w http.ResponseWriter, r *http.Request, onward http.Handler) {
		if !strings.HasSuffix(r.URL.Path, "/ciliumnodes") || r.URL.Query().Get("watch") == "" {
			onward.ServeHTTP(w, r)
			return
		}
		held := &heldUp{ResponseWriter: w, ctx: r.Context(), watch: l, pieces: make(chan piece, 10_000)}
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			held.send()
		}()
		// Also if the proxy panics, which it does if either side closes the connection.
		defer func() {
			close(held.pieces)
			<-sent
		}()
		onward.ServeHTTP(held, r)
	})
	return l
}

// heldUp is a response whose body is sent in order, each piece after the delay.
type heldUp struct {
	http.ResponseWriter
	ctx    context.Context
	watch  *lateWatch
	pieces chan piece
}

type piece struct {
	data []byte
	came time.Time
}

// WriteHeader is not delayed: the watch is established at once.
func (h *heldUp) WriteHeader(status int) {
	h.ResponseWriter.WriteHeader(status)
	h.flush()
}

func (h *heldUp) Write(data []byte) (int, error) {
	select {
	case h.pieces <- piece{bytes.Clone(data), time.Now()}:
		return len(data), nil
	case <-h.ctx.Done():
		return 0, context.Cause(h.ctx)
	}
}

// send returns when all pieces are sent, or the watch is closed.
func (h *heldUp) send() {
	for p := range h.pieces {
		if !h.due(p) {
			return
		}
		if _, err := h.ResponseWriter.Write(p.data); err != nil {
			return
		}
		h.flush()
	}
}

// due returns when a piece has to be sent, and false if the watch is closed.
func (h *heldUp) due(p piece) bool {
	for {
		delay, changed := h.watch.current()
		select {
		case <-time.After(time.Until(p.came.Add(delay))):
			return true
		case <-changed:
		case <-h.ctx.Done():
			return false
		}
	}
}

func (h *heldUp) flush() {
	// A closed connection needs no flush.
	_ = http.NewResponseController(h.ResponseWriter).Flush()
}

// startLateNode starts a node whose agent is behind by the delay.
func (e *env) startLateNode(name string, delay time.Duration, args ...string) *lateWatch {
	e.t.Helper()
	l := e.lateWatch(name, delay)
	e.startNode(name, append([]string{"--kubeconfig=" + l.kubeconfig}, args...)...)
	return l
}

// startLateNodes starts nodes whose agents are behind, and what 200 pods at once need. There is no leader election,
// so that a slow machine does not end a program. It returns the watches of the nodes.
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

// startStockScheduler starts the default scheduler.
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

// stockPods creates unreserved pods of the default scheduler.
func (e *env) stockPods(prefix string, n int) []string {
	e.t.Helper()
	pods := names(prefix, n)
	for _, name := range pods {
		e.create(ordinaryPod(name, stockScheduler, ""))
	}
	return pods
}

// asReserved returns the pods of some names that run with the IP that is reserved for them.
func asReserved(all []string, rows []witness.Row) map[string]witness.Row {
	found := map[string]witness.Row{}
	for _, r := range rows {
		if slices.Contains(all, r.Pod) && r.Running && r.Phase == "InUse" && r.UID != "" && slices.Contains(r.Entries, r.Node+"/"+r.Address) {
			found[r.Pod] = r
		}
	}
	return found
}

// mismatched counts the FixedIPs whose condition Mismatch has a status, and a reason if one is given.
func (e *env) mismatched(status metav1.ConditionStatus, reason string) int {
	n := 0
	for _, f := range e.witness.Records(namespace) {
		c := meta.FindStatusCondition(f.Status.Conditions, v1alpha1.ConditionMismatch)
		if c != nil && c.Status == status && (reason == "" || c.Reason == reason) {
			n++
		}
	}
	return n
}

// strays counts the pods with the prefixes that ever had an address that their entry did not give them. None may have
// shared it with another pod.
func (e *env) strays(prefixes ...string) int {
	e.t.Helper()
	n := 0
	for _, s := range e.witness.Strays() {
		if len(s.Others) > 0 {
			e.t.Error(s)
		}
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(s.Pod, namespace+"/"+p) }) {
			n++
		}
	}
	return n
}

// TestLateAgents: on ordinary nodes an agent that is 3 s late gives pods other IPs than their claims: they are restarted, one of each
// StatefulSet at a time, until they run with what is reserved for them. 40 pods of our scheduler, among 100 of the stock
// scheduler that take dynamic entries. No two ever have the same IP.
func TestLateAgents(t *testing.T) {
	t.Parallel()
	const workloads, stock, few, atOnce, behind = 20, 100, 9, 40, 3 * time.Second
	port := freePort(t)
	e := startCluster(t)
	// A wrong IP is reported by name for a while, and is not what is promised here.
	e.provoked = func(violation string) bool { return strings.Contains(violation, "is kept for it") }
	// Addresses cool down for a minute, longer than any agent is late.
	late := e.startLateNodes(threeNodes, behind, []string{"--cluster-pool-ipv4-cidr=10.240.0.0/16", "--min-free-ips=100", "--mismatch-grace-period=4s",
		fmt.Sprintf("--max-concurrent-restarts=%d", atOnce), fmt.Sprintf("--metrics-bind-address=127.0.0.1:%d", port)})

	var all []string
	awaitReserved := func() map[string]witness.Row {
		t.Helper()
		rows := e.await("wait for all to run with what is reserved for them", func(rows []witness.Row) bool {
			if n := e.mismatched(metav1.ConditionTrue, "Restarting"); n > atOnce {
				t.Errorf("%d pods are restarting at once, and %d may", n, atOnce)
			}
			return len(asReserved(all, rows)) == len(all) && e.mismatched(metav1.ConditionTrue, "") == 0
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
	byChance := e.mismatched(metav1.ConditionFalse, "AsReserved")
	e.awaitPods(theirs...)

	// On a slow machine 3 s are nothing. Agents that hear nothing at all give other IPs on any.
	for _, l := range late {
		l.setDelay(heldUpForAll)
	}
	for i := range few {
		name := fmt.Sprintf("unheard%d", i)
		e.create(statefulSet(name, 1))
		all = append(all, name+"-0")
	}
	e.await("wait for a pod to have another IP than is reserved for it", func([]witness.Row) bool {
		return e.mismatched(metav1.ConditionTrue, "WrongAddress") > 0
	})
	for _, l := range late {
		l.setDelay(behind)
	}
	before := awaitReserved()
	var restarts float64
	e.awaitMetric(port, "fixedip_restarts_total", map[string]string{"result": "evicted"}, func(v float64) bool { restarts = v; return v > 0 })
	strays := e.strays("web", "unheard")
	t.Logf("of %d pods %d had another IP than is reserved for them, %d of them while their agents were %s behind, and were put right with %.0f restarts",
		len(all), e.mismatched(metav1.ConditionFalse, "AsReserved"), byChance, behind, restarts)

	// By now the agents have seen all entries: every pod comes back with its IP at once.
	e.deletePods(all...)
	e.sameAddresses(before, e.awaitRunning(before, all...))
	if again := e.strays("web", "unheard"); again > strays {
		t.Errorf("%d pods came back with another IP than is reserved for them, and their agents knew it", again-strays)
	}
}

// TestLateAgentOfSlots is the same for a Deployment: what was claimed for its new pods become its slots. A pod that takes a slot over is a new claim
// each time, so that a restart helps once the agent has caught up.
func TestLateAgentOfSlots(t *testing.T) {
	t.Parallel()
	e := start(t, options{controllerArgs: append([]string{"--mismatch-grace-period=4s", "--workload-kind=" + deployments}, defaultPool...),
		workloads: "[{apiGroup: apps, kind: Deployment, identity: Slot}]"})
	e.provoked = func(violation string) bool { return strings.Contains(violation, "is kept for it") }
	late := e.startLateNode("node-1", 3*time.Second)
	e.must(e.WaitNodeReady(e.whileAllRun(), "node-1"))

	e.create(deployment("shop", 3))
	slots := e.awaitSlots(3)
	e.await("wait for a pod to have another address", func([]witness.Row) bool { return e.mismatched(metav1.ConditionTrue, "WrongAddress") > 0 })
	// Each takeover is a new claim, so that an agent that stays behind gets each next pod wrong too.
	late.setDelay(0)
	first := map[string]witness.Row{}
	e.await("wait for all to run at the slots", func(rows []witness.Row) bool {
		clear(first)
		for _, r := range rows {
			if r.UID != "" && r.Running && r.Phase == "InUse" && slots["node-1/"+r.Address] {
				first[r.Pod] = r
			}
		}
		return len(first) == 3 && e.mismatched(metav1.ConditionTrue, "") == 0
	})
	if e.strays("shop-") == 0 {
		t.Error("no pod got another IP than its claim, so that this has tested nothing")
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
	e.await("wait for the next pods to have other addresses", func(rows []witness.Row) bool {
		if e.mismatched(metav1.ConditionTrue, "WrongAddress") > 0 {
			return true
		}
		// A pod that got the claimed slot by chance is deleted.
		for _, r := range rows {
			if r.UID != "" && r.Running && r.Phase == "InUse" && slots["node-1/"+r.Address] && !replaced[r.Pod] {
				replace(r.Pod)
			}
		}
		return false
	})
	late.setDelay(0)
	var second map[string]witness.Row
	e.await("wait for all to run at the slots", func(rows []witness.Row) bool {
		second = map[string]witness.Row{}
		for _, r := range rows {
			if r.UID == "" || replaced[r.Pod] || !r.Running || r.Phase != "InUse" || !slots["node-1/"+r.Address] {
				return false
			}
			second[r.Pod] = r
		}
		return len(second) == 3 && e.mismatched(metav1.ConditionTrue, "") == 0
	})
	if now := places(second); !maps.Equal(now, slots) {
		t.Errorf("the pods are at %v, and the slots are %v", now, slots)
	}
	if now := e.awaitSlots(3); !maps.Equal(now, slots) {
		t.Errorf("the slots are %v, and were %v", now, slots)
	}
	if e.mismatched(metav1.ConditionFalse, "AsReserved") == 0 {
		t.Error("no FixedIP tells that its pod was put right")
	}
}
