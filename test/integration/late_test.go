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
// the agent or the API server were loaded. Everything else passes at once, so that the kubelet knows its pods in time.
type lateWatch struct {
	kubeconfig string

	mu sync.Mutex
	// delay is how long the proxy holds each event.
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
		// The handler panics if either side closes the connection, so that this has to be deferred.
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

// WriteHeader is not delayed, so that the watch is established at once.
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

// send sends the pieces. It returns when all are sent or the watch is closed.
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

// due waits until a piece has to be sent. It returns false if the watch is closed.
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

// startLateNode starts a node whose agent sees its CiliumNode with a delay.
func (e *env) startLateNode(name string, delay time.Duration, args ...string) *lateWatch {
	e.t.Helper()
	l := e.lateWatch(name, delay)
	e.startNode(name, append([]string{"--kubeconfig=" + l.kubeconfig}, args...)...)
	return l
}

// startLateNodes starts nodes whose agents see their CiliumNodes with a delay, the controller and both schedulers. There is
// no leader election, so that a slow machine does not end a program. It returns the watches of the nodes.
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

// stockPods creates n unreserved pods of the default scheduler and returns their names.
func (e *env) stockPods(prefix string, n int) []string {
	e.t.Helper()
	pods := names(prefix, n)
	for _, name := range pods {
		e.create(ordinaryPod(name, stockScheduler, ""))
	}
	return pods
}

// asReserved returns the rows of the pods that run with the address reserved for them. Key: the pod name.
func asReserved(all []string, rows []witness.Row) map[string]witness.Row {
	found := map[string]witness.Row{}
	for _, r := range rows {
		if slices.Contains(all, r.Pod) && r.Running && r.Phase == "InUse" && r.UID != "" && slices.Contains(r.Entries, r.Node+"/"+r.Address) {
			found[r.Pod] = r
		}
	}
	return found
}

// mismatched counts the FixedIPs whose condition Mismatch has the status, and the reason if one is given.
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

// strays counts the addresses that pods with the prefixes had while the entry did not name the pod all the time. It fails
// the test if another pod may have had such an address too.
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

// TestLateAgents checks agents that see claims late and give pods other addresses: these pods are restarted, at most as many
// at a time as the flag allows, until they run with the addresses reserved for them, and no two pods ever have the same
// address. 40 pods of our scheduler run among 100 pods of the default scheduler, which take dynamic entries. Another 9 pods
// start while agents see nothing at all.
func TestLateAgents(t *testing.T) {
	t.Parallel()
	const workloads, stock, few, atOnce, behind = 20, 100, 9, 40, 3 * time.Second
	port := freePort(t)
	e := startCluster(t)
	// The witness reports a pod without its reserved address after a while, which this test causes.
	e.provoked = func(violation string) bool { return strings.Contains(violation, "is kept for it") }
	// Addresses are in cooldown for a minute, longer than any agent is late.
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

	// On a slow machine a delay of 3 s may have no effect. Agents that get no events at all give out other addresses on any
	// machine.
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

	// By now the agents have seen all entries, so that every pod gets its address at once.
	e.deletePods(all...)
	e.sameAddresses(before, e.awaitRunning(before, all...))
	if again := e.strays("web", "unheard"); again > strays {
		t.Errorf("%d pods came back with another IP than is reserved for them, and their agents knew it", again-strays)
	}
}

// TestLateAgentOfSlots checks late agents for a Deployment: the addresses that were claimed for its pods become its slots,
// and its pods run at these in the end. A pod that takes a slot over is a new claim, so that a restart helps only once the
// agent has caught up.
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
	// An agent that stays behind would give each next pod a wrong address too.
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
		// A pod that got the claimed slot by chance is replaced.
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
