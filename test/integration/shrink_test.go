// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/witness"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
)

// unreservedPod returns a bare pod without a fixed address. If node is empty, the given scheduler places the pod.
// Otherwise the pod is bound to node.
func unreservedPod(name, scheduler, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PodSpec{
			SchedulerName: scheduler, NodeName: node,
			TerminationGracePeriodSeconds: ptr.To[int64](1),
			Containers:                    []corev1.Container{{Name: "main", Image: "none"}},
		},
	}
}

// awaitPods waits until all of the pods run, and returns their rows. Key: the pod name.
func (e *env) awaitPods(pods ...string) map[string]witness.Row {
	e.t.Helper()
	found := map[string]witness.Row{}
	e.await(fmt.Sprintf("wait for %d pods to run", len(pods)), func(rows []witness.Row) bool {
		clear(found)
		for _, r := range rows {
			if r.Running && slices.Contains(pods, r.Pod) {
				found[r.Pod] = r
			}
		}
		return len(found) == len(pods)
	})
	return found
}

// awaitNode polls a CiliumNode until condition returns true, and returns the CiliumNode. It fails the test after
// stepTimeout.
func (e *env) awaitNode(name, what string, condition func(*ciliumv2.CiliumNode) bool) *ciliumv2.CiliumNode {
	e.t.Helper()
	cn := &ciliumv2.CiliumNode{}
	ctx := within(e.t)
	for {
		e.must(e.api.Get(ctx, client.ObjectKey{Name: name}, cn))
		if condition(cn) {
			return cn
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			e.t.Fatalf("wait on node %s for %s: %v; last spec.ipam %+v, status.ipam %+v", name, what, context.Cause(ctx), cn.Spec.IPAM, cn.Status.IPAM)
		}
	}
}

// dynamic returns the number of dynamic entries.
func dynamic(cn *ciliumv2.CiliumNode) int {
	n := 0
	for _, entry := range cn.Spec.IPAM.Pool {
		if entry.Owner == "" {
			n++
		}
	}
	return n
}

// withdrawn returns the number of withdrawn entries.
func withdrawn(cn *ciliumv2.CiliumNode) int {
	n := 0
	for _, raw := range cn.Spec.IPAM.Pool {
		if e, _ := ciliumpool.DecodeEntry(raw); e.IsWithdrawn() {
			n++
		}
	}
	return n
}

// TestG12Watermarks checks that a pool grows with its pods up to --max-dynamic-ips and shrinks when the pods are
// deleted, with at most --node-writes-per-minute writes. A restarted agent then restores all running pods, which
// requires that their entries are still in the pool (G12).
func TestG12Watermarks(t *testing.T) {
	t.Parallel()
	const perMinute, most = 20, 28
	e := start(t, options{nodes: []string{"node-1"}, noScheduler: true, controllerArgs: append([]string{
		"--min-free-ips=4", "--max-surplus-ips=4", fmt.Sprintf("--max-dynamic-ips=%d", most), fmt.Sprintf("--node-writes-per-minute=%d", perMinute)}, defaultPool...)})
	began, first := time.Now(), e.witness.Generations()["node-1"]
	// The node itself uses two more addresses.
	settled := func(used int) func(*ciliumv2.CiliumNode) bool {
		return func(cn *ciliumv2.CiliumNode) bool {
			free := dynamic(cn) - used - 2
			return len(cn.Status.IPAM.Used) == used+2 && free >= 4 && free <= 8 && withdrawn(cn) == 0
		}
	}
	e.awaitNode("node-1", "a first pool", settled(0))

	var pods []string
	for i := range 20 {
		pods = append(pods, fmt.Sprintf("burst-%d", i))
		e.create(unreservedPod(pods[i], fakesScheduler, "node-1"))
	}
	e.awaitPods(pods...)
	e.awaitNode("node-1", "the pool to have grown", settled(20))
	for i := range 10 {
		pods = append(pods, fmt.Sprintf("more-%d", i))
		e.create(unreservedPod(pods[20+i], fakesScheduler, "node-1"))
	}
	running := func(rows []witness.Row) (n int) {
		for _, r := range rows {
			if r.Running {
				n++
			}
		}
		return n
	}
	e.await("wait for pods to use all dynamic entries that the node may have", func(rows []witness.Row) bool { return running(rows) == most-2 })
	e.awaitNode("node-1", "the agent to report all addresses as used", func(cn *ciliumv2.CiliumNode) bool { return len(cn.Status.IPAM.Used) == most })
	e.awaitEventOn("Pod", e.podWithoutAddress(pods), "FailedCreatePodSandBox", "unable to allocate IP")
	if cn := e.awaitNode("node-1", "the pool", func(*ciliumv2.CiliumNode) bool { return true }); dynamic(cn) != most {
		t.Errorf("the pool has %d dynamic entries, want the maximum %d", dynamic(cn), most)
	}

	e.deletePods(pods[3:]...)
	cn := e.awaitNode("node-1", "the pool to have shrunk", settled(3))
	for _, name := range pods[:3] {
		ip := e.witness.Pod(namespace, name).Status.PodIP
		if _, exists := cn.Spec.IPAM.Pool[ip]; !exists {
			t.Errorf("pod %s has %s, which is no longer in the pool", name, ip)
		}
	}
	minutes := math.Ceil(time.Since(began).Minutes())
	// The agent writes the spec once, with the addresses of the node itself.
	if writes := e.witness.Generations()["node-1"] - first; float64(writes) > minutes*perMinute+1 {
		t.Errorf("%d writes of the CiliumNode's spec in %v minutes, want at most %d in a minute", writes, minutes, perMinute)
	} else {
		t.Logf("%d writes of the CiliumNode's spec while the number of running pods rose to %d and fell to 3", writes, most-2)
	}
	if len(cn.ManagedFields) > 0 {
		t.Errorf("the CiliumNode has managed fields %+v, want none", cn.ManagedFields)
	}

	// A restarted agent restores the remaining pods, and its write does not bring managed fields back.
	e.must(e.Process("node-1").Kill())
	e.must(e.Process("node-1").Restart(within(t)))
	e.awaitNode("node-1", "the agent to have restored its pods", func(cn *ciliumv2.CiliumNode) bool {
		restored := 0
		for _, used := range cn.Status.IPAM.Used {
			if strings.HasSuffix(used.Owner, " [restored]") {
				restored++
			}
		}
		return restored == 3 && len(cn.ManagedFields) == 0
	})
}

// podWithoutAddress returns the first of the pods that has no address.
func (e *env) podWithoutAddress(pods []string) string {
	e.t.Helper()
	i := slices.IndexFunc(pods, func(name string) bool { return e.witness.Pod(namespace, name).Status.PodIP == "" })
	if i < 0 {
		e.t.Fatalf("all of the pods %v have addresses, want one without", pods)
	}
	return pods[i]
}

// TestPoolGrowsForPodsThatWait checks that a pool grows for waiting pods if more pods are created at once than the pool has
// free addresses, even if the agent does not report.
func TestPoolGrowsForPodsThatWait(t *testing.T) {
	t.Parallel()
	e := startCluster(t)
	e.startNode("node-1", "--update-rate=1h")
	e.startController("controller", append([]string{"--min-free-ips=4"}, defaultPool...)...)
	e.must(e.WaitNodeReady(e.whileAllRun(), "node-1"))
	var pods []string
	for _, more := range []int{20, 15} {
		for range more {
			name := fmt.Sprintf("burst-%d", len(pods))
			pods = append(pods, name)
			e.create(unreservedPod(name, fakesScheduler, "node-1"))
		}
		e.awaitPods(pods...)
	}
}

// TestHandshakesOfOthers checks that a restarted controller withdraws the release handshakes that another program started and
// the agent answered, and that the pool then has as many dynamic entries as before.
func TestHandshakesOfOthers(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: []string{"node-1"}, noScheduler: true, controllerArgs: append([]string{"--min-free-ips=20", "--max-surplus-ips=2"}, defaultPool...)})
	e.awaitNode("node-1", "a first pool", func(cn *ciliumv2.CiliumNode) bool { return dynamic(cn) == 22 && len(cn.Status.IPAM.Used) == 2 })
	e.must(e.controller.Kill())
	// The restarted controller finds three handshakes. The agent is ready to release free[0], whose entry still exists, and
	// free[1], whose entry the test removes. The agent refuses to release own[0], because the node itself uses that address.
	cn := e.awaitNode("node-1", "the pool", func(*ciliumv2.CiliumNode) bool { return true })
	var own, free []string
	for ip := range cn.Spec.IPAM.Pool {
		if _, used := cn.Status.IPAM.Used[ip]; used {
			own = append(own, ip)
		} else {
			free = append(free, ip)
		}
	}
	e.releaseIPs("node-1", map[string]string{free[0]: "marked-for-release", free[1]: "marked-for-release", own[0]: "marked-for-release"})
	e.awaitNode("node-1", "the agent's answers", func(cn *ciliumv2.CiliumNode) bool {
		keys := cn.Status.IPAM.ReleaseIPs
		return keys[free[0]] == "ready-for-release" && keys[free[1]] == "ready-for-release" && keys[own[0]] == "do-not-release"
	})
	e.must(e.api.Patch(within(t), cn, client.RawPatch("application/json-patch+json", []byte(`[{"op":"remove","path":"/spec/ipam/pool/`+free[1]+`"}]`))))
	e.must(e.controller.Restart(within(t)))
	// The pool gets 20 free entries again, although the agent was ready to release two of them.
	e.awaitNode("node-1", "all handshakes to end", func(cn *ciliumv2.CiliumNode) bool {
		_, own0 := cn.Spec.IPAM.Pool[own[0]]
		return own0 && len(cn.Status.IPAM.ReleaseIPs) == 0 && dynamic(cn) == 22
	})
}

// TestShrinkAcrossRestarts checks that surplus entries are withdrawn and removed even if the controller is killed meanwhile.
func TestShrinkAcrossRestarts(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: []string{"node-1"}, noScheduler: true, controllerArgs: append([]string{"--min-free-ips=20", "--max-surplus-ips=2"}, defaultPool...)})
	e.awaitNode("node-1", "a first pool", func(cn *ciliumv2.CiliumNode) bool { return dynamic(cn) == 22 && len(cn.Status.IPAM.Used) == 2 })
	cn := e.awaitNode("node-1", "the pool", func(*ciliumv2.CiliumNode) bool { return true })
	var patch []string
	for i := range 10 {
		patch = append(patch, fmt.Sprintf(`{"op":"add","path":"/spec/ipam/pool/%s%d","value":{}}`, strings.TrimSuffix(cn.Spec.IPAM.PodCIDRs[0], "0/24"), 200+i))
	}
	// The agent cannot acknowledge the withdrawal while its process is stopped, so that the restarted controller finds the
	// withdrawn entries.
	e.must(e.Process("node-1").Signal(syscall.SIGSTOP))
	e.must(e.api.Patch(within(t), cn, client.RawPatch("application/json-patch+json", []byte("["+strings.Join(patch, ",")+"]"))))
	e.awaitNode("node-1", "withdrawn entries", func(cn *ciliumv2.CiliumNode) bool { return withdrawn(cn) > 0 })
	e.must(e.controller.Kill())
	e.must(e.Process("node-1").Signal(syscall.SIGCONT))
	e.must(e.controller.Restart(within(t)))
	e.awaitNode("node-1", "a pool within the watermark", func(cn *ciliumv2.CiliumNode) bool {
		return dynamic(cn) >= 22 && dynamic(cn) <= 24 && withdrawn(cn) == 0 && len(cn.Status.IPAM.ReleaseIPs) == 0
	})
}

// TestDynamicEntryBecomesReserved checks that if a FixedIP names the address of a dynamic entry, the pod of the FixedIP gets
// the address, and the pool gets another dynamic entry instead.
func TestDynamicEntryBecomesReserved(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: []string{"node-1"}, controllerArgs: defaultPool})
	var offered string
	e.awaitNode("node-1", "an unused dynamic entry", func(cn *ciliumv2.CiliumNode) bool {
		for ip := range cn.Spec.IPAM.Pool {
			if _, used := cn.Status.IPAM.Used[ip]; !used && len(cn.Status.IPAM.Used) == 2 {
				offered = ip
			}
		}
		return offered != ""
	})
	e.create(beforehand("web", "web-0", offered), statefulSet("web", 1))
	if r := e.awaitRunning(nil, "web-0")["web-0"]; r.Address != offered {
		t.Errorf("web-0 has %s, want %s, which its FixedIP names", r.Address, offered)
	}
	e.awaitNode("node-1", "ten dynamic entries", func(cn *ciliumv2.CiliumNode) bool {
		return dynamic(cn) == 10 && withdrawn(cn) == 0
	})
}

// releaseIPs writes states of release handshakes by hand. Key of keys: the address. Value: the state.
func (e *env) releaseIPs(node string, keys map[string]string) {
	e.t.Helper()
	var list []string
	for ip, state := range keys {
		list = append(list, fmt.Sprintf("%q:%q", ip, state))
	}
	cn := &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: node}}
	patch := `{"status":{"ipam":{"release-ips":{` + strings.Join(list, ",") + `}}}}`
	e.must(e.api.Status().Patch(within(e.t), cn, client.RawPatch("application/merge-patch+json", []byte(patch))))
}
