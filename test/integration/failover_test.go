// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/product"
	"fixedip.io/fixedip/hack/witness"
	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

func failover(policy string) func(*appsv1.StatefulSet) {
	return func(s *appsv1.StatefulSet) {
		metav1.SetMetaDataAnnotation(&s.ObjectMeta, "fixedip.io/failover", policy)
	}
}

func (e *env) cordon(node string, yes bool) {
	e.t.Helper()
	e.must(e.api.Patch(within(e.t), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}},
		client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, yes))))
}

// cordonOthers cordons all nodes but one, which it uncordons. If except is empty, it uncordons all nodes.
func (e *env) cordonOthers(all []string, except string) {
	e.t.Helper()
	for _, n := range all {
		e.cordon(n, except != "" && n != except)
	}
}

// checkMoved checks that a pod has the same addresses on another node, and that only the pool of that node has entries for
// the pod. It waits until the FixedIP of the pod names that node.
func (e *env) checkMoved(before, after witness.Row) {
	e.t.Helper()
	if after.Address != before.Address || after.Node == before.Node {
		e.t.Errorf("pod %s has %s on node %s, want %s on a node other than %s", before.Pod, after.Address, after.Node, before.Address, before.Node)
	}
	var want []string
	for _, ip := range strings.Split(after.Address, ",") {
		want = append(want, after.Node+"/"+ip)
	}
	if !slices.Equal(after.Entries, want) {
		e.t.Errorf("pod %s has the entries %v, want %v", after.Pod, after.Entries, want)
	}
	e.awaitRecord(after.Pod, func(f *v1alpha1.FixedIP) bool { return f.Spec.NodeName == after.Node })
}

// owners returns the owner of the entry of an address in the pool of each node. Nodes whose pools have no entry of the address
// are left out. Key: the node. Value: the owner; empty for a dynamic entry.
func (e *env) owners(nodes []string, address string) map[string]string {
	found := map[string]string{}
	for _, n := range nodes {
		if owner, ok := e.witness.Owner(n, address); ok {
			found[n] = owner
		}
	}
	return found
}

// eventually polls until condition returns true, for conditions that the witness does not watch. It fails the test after
// stepTimeout.
func (e *env) eventually(what string, condition func() bool) {
	e.t.Helper()
	err := wait.PollUntilContextCancel(within(e.t), 100*time.Millisecond, true, func(context.Context) (bool, error) { return condition(), nil })
	if err != nil {
		e.t.Fatalf("wait for %s: %v", what, err)
	}
}

// TestMigrate checks that an address migrates with its pod if the home node is cordoned, and stays on the new node when
// the home node is uncordoned. The address then migrates to the third node, returns to the home node, migrates once more,
// and is released with its workload. A pod with the policy Wait waits.
func TestMigrate(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: threeNodes, controllerArgs: defaultPool, movable: true})
	e.create(statefulSet("web", 1, failover("Migrate")), statefulSet("waits", 1, failover("Wait")), statefulSet("wrong", 1, failover("Move")))
	before := e.awaitRunning(nil, "web-0", "waits-0", "wrong-0")
	home, address := before["web-0"].Node, before["web-0"].Address
	e.awaitRecord("web-0", func(f *v1alpha1.FixedIP) bool { return f.Spec.Failover == v1alpha1.Migrate })
	e.awaitEvent("wrong", "InvalidAnnotation", `annotation fixedip.io/failover is "Move"; write Wait, Migrate or Reassign; FixedIPs keep their failover policy, and new ones get the default`)

	step := func(from map[string]witness.Row, to string) map[string]witness.Row {
		t.Helper()
		e.cordonOthers(threeNodes, to)
		e.deletePods("web-0")
		after := e.awaitRunning(from, "web-0")
		e.checkMoved(from["web-0"], after["web-0"])
		return after
	}
	others := slices.DeleteFunc(slices.Clone(threeNodes), func(n string) bool { return n == home })
	second := step(before, others[0])
	e.awaitEvent("web-0", "Moved", fmt.Sprintf("The node of IP %s is now %s instead of %s", address, others[0], home))
	if got, want := e.owners(threeNodes, address), map[string]string{home: "fixedip.io/moved", others[0]: "default/web-0"}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the owners of %s in the pools are %v, want %v", address, got, want)
	}

	// The home node is schedulable again, and the address stays on its new node. A restart in place writes nothing.
	e.cordonOthers(threeNodes, "")
	generations := e.witness.Generations()
	e.deletePods("web-0")
	third := e.awaitRunning(second, "web-0")
	e.sameAddresses(second, third)
	for n, g := range e.witness.Generations() {
		if g != generations[n] {
			t.Errorf("the spec of CiliumNode %s was written %d times, want no write", n, g-generations[n])
		}
	}

	fourth := step(third, others[1])
	last := step(fourth, home)
	e.await("wait for the moved entries to be removed", func([]witness.Row) bool {
		return fmt.Sprint(e.owners(threeNodes, address)) == fmt.Sprint(map[string]string{home: "default/web-0"})
	})
	step(last, others[0])

	w := before["waits-0"]
	e.cordonOthers(threeNodes, slices.DeleteFunc(slices.Clone(threeNodes), func(n string) bool { return n == w.Node })[0])
	e.deletePods("waits-0")
	e.podMessage("waits-0", fmt.Sprintf("its address %s belongs to node %s, which is cordoned; uncordon that node; to place the pod on another node, annotate its StatefulSet with fixedip.io/failover: Migrate", w.Address, w.Node))
	e.cordonOthers(threeNodes, "")
	e.sameAddresses(map[string]witness.Row{"waits-0": w}, e.awaitRunning(before, "waits-0"))

	e.delete(statefulSet("web", 1), client.PropagationPolicy(metav1.DeletePropagationBackground))
	e.await("wait for the address to be free", func(rows []witness.Row) bool {
		return !slices.ContainsFunc(rows, func(r witness.Row) bool { return r.Pod == "web-0" }) && len(e.owners(threeNodes, address)) == 0
	})
}

// TestMigrateDualStack checks that both addresses of a pod migrate together.
func TestMigrateDualStack(t *testing.T) {
	t.Parallel()
	e := start(t, options{
		controllerArgs: append([]string{"--cluster-pool-ipv6-cidr=fd00:240::/112", "--cluster-pool-ipv6-mask-size=120"}, defaultPool...),
		families:       []string{"IPv4", "IPv6"},
		failover:       "Migrate",
		movable:        true,
	})
	nodes := []string{"node-1", "node-2"}
	for _, n := range nodes {
		e.startNode(n, "--ipv6")
	}
	e.create(statefulSet("web", 1))
	before := e.awaitRunning(nil, "web-0")
	for range 2 {
		e.cordonOthers(nodes, slices.DeleteFunc(slices.Clone(nodes), func(n string) bool { return n == before["web-0"].Node })[0])
		e.deletePods("web-0")
		after := e.awaitRunning(before, "web-0")
		if len(strings.Split(after["web-0"].Address, ",")) != 2 {
			t.Errorf("web-0 has %s, want an address of each family", after["web-0"].Address)
		}
		e.checkMoved(before["web-0"], after["web-0"])
		before = after
	}
}

// TestMigrateOnlyFenced checks that a pod whose node is not ready waits, with a message, until an administrator taints the
// node as out of service.
func TestMigrateOnlyFenced(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: threeNodes, controllerArgs: defaultPool, movable: true, controlPlaneArgs: []string{"--node-monitor-grace-period=12s"}})
	e.create(statefulSet("web", 1, failover("Migrate")))
	before := e.awaitRunning(nil, "web-0")
	lost := before["web-0"].Node
	e.must(e.Process(lost).Kill())
	e.eventually("the taint of the lost node", func() bool {
		var node corev1.Node
		e.must(e.api.Get(within(t), client.ObjectKey{Name: lost}, &node))
		// The node gets its taints after its condition has changed. Until it has the taint with the effect NoSchedule, the
		// next pod may be placed there again. The taint with the effect NoExecute does not prevent that, because every pod
		// tolerates it for five minutes.
		return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
			return t.Key == corev1.TaintNodeUnreachable && t.Effect == corev1.TaintEffectNoSchedule
		})
	})
	e.delete(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web-0"}}, client.GracePeriodSeconds(0))
	e.podMessage("web-0", fmt.Sprintf("its address %s belongs to node %s, which is not ready; the pod can be placed there when that node is ready; the former pod may still run there: node %s is not ready; if it is shut down, delete the node or add the taint node.kubernetes.io/out-of-service",
		before["web-0"].Address, lost, lost))

	taint := `{"spec":{"taints":[{"key":"node.kubernetes.io/out-of-service","value":"nodeshutdown","effect":"NoExecute"}]}}`
	e.must(e.api.Patch(within(t), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: lost}}, client.RawPatch(types.StrategicMergePatchType, []byte(taint))))
	after := e.awaitRunning(before, "web-0")
	e.checkMoved(before["web-0"], after["web-0"])
}

// TestMigrateNotAllowed checks that a pod with the policy Migrate waits with a message if addresses may not migrate.
func TestMigrateNotAllowed(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: []string{"node-1", "node-2"}, controllerArgs: defaultPool})
	e.create(statefulSet("web", 1, failover("Migrate")))
	before := e.awaitRunning(nil, "web-0")
	r := before["web-0"]
	e.awaitRecord("web-0", func(f *v1alpha1.FixedIP) bool { return f.Spec.Failover == v1alpha1.Migrate })
	e.cordon(r.Node, true)
	e.deletePods("web-0")
	e.podMessage("web-0", fmt.Sprintf("its address %s belongs to node %s, which is cordoned; uncordon that node; the pod's failover policy is Migrate, but allowAddressMigration is false", r.Address, r.Node))
	e.cordon(r.Node, false)
	e.sameAddresses(before, e.awaitRunning(before, "web-0"))
}

// TestReassign checks that a pod gets another address on another node, that its FixedIP gets that address, and that the old
// address is released.
func TestReassign(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: []string{"node-1", "node-2"}, controllerArgs: defaultPool})
	e.create(statefulSet("web", 2, failover("Reassign")))
	before := e.awaitRunning(nil, "web-0", "web-1")
	r := before["web-0"]
	e.awaitRecord("web-0", func(f *v1alpha1.FixedIP) bool { return f.Spec.Failover == v1alpha1.Reassign })

	// The pod keeps its address, because its node is schedulable.
	e.deletePods("web-0")
	again := e.awaitRunning(before, "web-0")
	e.sameAddresses(map[string]witness.Row{"web-0": r}, again)

	e.cordon(r.Node, true)
	e.deletePods("web-0")
	other := ""
	e.await("wait for web-0 to run on another node, with a FixedIP of its new address", func(rows []witness.Row) bool {
		for _, now := range rows {
			fip := e.witness.Record(namespace, "web-0")
			if now.Pod == "web-0" && now.Running && now.Node != r.Node && now.Address != r.Address && now.State == "InUse" &&
				slices.Equal(now.Entries, []string{now.Node + "/" + now.Address}) && fip != nil && slices.Equal(fip.Spec.IPs, []string{now.Address}) {
				other = now.Node
				return true
			}
		}
		return false
	})
	e.awaitEvent("web-0", "Reassigned", fmt.Sprintf("The pod has other IPs on node %s; the IPs that were reserved for it (%s) are released", other, r.Address))
	e.await("wait for the old address to be free", func([]witness.Row) bool { return len(e.owners([]string{"node-1", "node-2"}, r.Address)) == 0 })
}

// TestSchedulerKilledDuringMove kills the scheduler after each write of a migration, and checks that the scheduler that is
// started next completes the migration.
func TestSchedulerKilledDuringMove(t *testing.T) {
	t.Parallel()
	nodes := []string{"node-1", "node-2", "node-3"}
	e := start(t, options{nodes: nodes, controllerArgs: defaultPool, noScheduler: true})
	// The proxy decrements a counter with each patch of a CiliumNode. It executes the patch that makes the counter zero, but
	// drops the response. That patch and all later patches get no answer.
	var patches atomic.Int64
	patches.Store(1 << 30)
	arrived := make(chan struct{}, 64)
	kubeconfig := e.schedulerThrough(func(w http.ResponseWriter, r *http.Request, pass http.Handler) {
		if r.Method != http.MethodPatch || !strings.Contains(r.URL.Path, "/ciliumnodes/") {
			pass.ServeHTTP(w, r)
			return
		}
		switch left := patches.Add(-1); {
		case left > 0:
			pass.ServeHTTP(w, r)
		case left == 0:
			pass.ServeHTTP(&droppedResponse{header: http.Header{}}, r)
			fallthrough
		default:
			arrived <- struct{}{}
			<-r.Context().Done()
		}
	})
	scheduler := e.startScheduler("first", product.SchedulerOptions{Movable: true, NoElection: true})
	e.create(statefulSet("web", 1, failover("Migrate")))
	now := e.awaitRunning(nil, "web-0")
	home := now["web-0"].Node
	others := slices.DeleteFunc(slices.Clone(nodes), func(n string) bool { return n == home })
	for killAt := int64(1); killAt <= 5; killAt++ {
		for _, move := range []struct {
			to     string
			writes int64
		}{{others[0], 3}, {others[1], 5}, {home, 3}} {
			name := fmt.Sprintf("to-%s-%d", move.to, killAt)
			e.await("wait for the pool of "+move.to+" to have no entry of the address, or a moved entry", func([]witness.Row) bool {
				owner, exists := e.witness.Owner(move.to, now["web-0"].Address)
				return !exists || owner == "fixedip.io/moved"
			})
			if killAt <= move.writes {
				e.must(scheduler.Kill())
				patches.Store(killAt)
				scheduler = e.startScheduler("victim-"+name, product.SchedulerOptions{Movable: true, NoElection: true, Kubeconfig: kubeconfig})
			}
			e.cordonOthers(nodes, move.to)
			e.deletePods("web-0")
			if killAt <= move.writes {
				select {
				case <-arrived:
				case <-within(t).Done():
					t.Fatalf("%s: the scheduler has not sent the patch in time", name)
				}
				e.must(scheduler.Kill())
				for len(arrived) > 0 {
					<-arrived
				}
				scheduler = e.startScheduler("successor-"+name, product.SchedulerOptions{Movable: true, NoElection: true})
			}
			after := e.awaitRunning(now, "web-0")
			e.checkMoved(now["web-0"], after["web-0"])
			now = after
		}
	}
}

// droppedResponse is a response writer that drops the response.
type droppedResponse struct{ header http.Header }

func (s *droppedResponse) Header() http.Header         { return s.header }
func (s *droppedResponse) Write(b []byte) (int, error) { return len(b), nil }
func (s *droppedResponse) WriteHeader(int)             {}
