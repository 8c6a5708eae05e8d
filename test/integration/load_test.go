// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/product"
	"fixedip.io/fixedip/hack/witness"
)

// poolByHand writes a subnet and a pool for a node, as a user without a controller does. Key of entries: the address. Value:
// the owner; empty for a dynamic entry.
func (e *env) poolByHand(node, subnet string, entries map[string]string) {
	e.t.Helper()
	pool := []string{}
	for addr, owner := range entries {
		pool = append(pool, fmt.Sprintf("%q:{%s}", addr, ownerField(owner)))
	}
	patch := fmt.Sprintf(`{"spec":{"ipam":{"podCIDRs":[%q],"pool":{%s}}}}`, subnet, strings.Join(pool, ","))
	// The agent creates the CiliumNode when it starts.
	e.eventually("CiliumNode "+node+" to exist", func() bool {
		cn := &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: node}}
		err := e.api.Patch(within(e.t), cn, client.RawPatch(types.MergePatchType, []byte(patch)))
		e.must(client.IgnoreNotFound(err))
		return err == nil
	})
}

func ownerField(owner string) string {
	if owner == "" {
		return ""
	}
	return fmt.Sprintf("%q:%q", "owner", owner)
}

// setOwner writes an entry with the owner and without a resource, in one write. If owner is nil, it removes the entry.
func (e *env) setOwner(node, addr string, owner *string) {
	e.t.Helper()
	value := "null"
	if owner != nil {
		value = "{" + ownerField(*owner) + `,"resource":""}`
	}
	cn := &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: node}}
	patch := fmt.Sprintf(`{"spec":{"ipam":{"pool":{%q:%s}}}}`, addr, value)
	e.must(e.api.Patch(within(e.t), cn, client.RawPatch(types.MergePatchType, []byte(patch))))
}

// TestNoLostWakeUps frees the only address that a pod can get, and checks that the pod is bound. In each round it frees
// the address at another moment while the pod is queued or scheduled. If an event were lost, the pod would wait for
// five minutes. FIXEDIP_WAKEUPS is the number of rounds.
func TestNoLostWakeUps(t *testing.T) {
	t.Parallel()
	e := start(t, options{})
	e.startNode("node-1")
	const lastAddress, occupant = "10.9.0.6", "hand/occupant"
	e.poolByHand("node-1", "10.9.0.0/29", map[string]string{"10.9.0.1": "", "10.9.0.2": "", "10.9.0.3": occupant, "10.9.0.4": occupant, "10.9.0.5": occupant, lastAddress: occupant})
	e.must(e.WaitNodeReady(within(t), "node-1"))
	e.create(statefulSet("web", 1))

	rounds := fromEnv(t, "FIXEDIP_WAKEUPS", 60)
	var slowest time.Duration
	uid := ""
	for range rounds {
		// The pod exists and is not bound. When the address becomes available, the scheduler has already refused the pod in some
		// rounds, and is still scheduling it in others.
		e.await("wait for the next pod to be created", func(rows []witness.Row) bool {
			return slices.ContainsFunc(rows, func(r witness.Row) bool { return r.Pod == "web-0" && r.UID != "" && r.UID != uid && r.Node == "" })
		})
		if pause := rand.N(30 * time.Millisecond); pause > 5*time.Millisecond {
			time.Sleep(pause)
		}
		freed := time.Now()
		e.setOwner("node-1", lastAddress, nil)
		e.await("wait for the pod to be bound", func(rows []witness.Row) bool {
			return slices.ContainsFunc(rows, func(r witness.Row) bool {
				if r.Pod == "web-0" && r.Node != "" && r.UID != uid {
					uid = r.UID
					return true
				}
				return false
			})
		})
		slowest = max(slowest, time.Since(freed))
		owner := occupant
		e.setOwner("node-1", lastAddress, &owner)
		e.delete(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web-0"}}, client.GracePeriodSeconds(0))
	}
	t.Logf("%d rounds; the longest time from the available address to the bind was %v", rounds, slowest.Round(time.Millisecond))
}

// TestBurstOnOneNode checks that the claims of fifty concurrent first placements on one node share patches, and that the agent
// has few conflicts.
func TestBurstOnOneNode(t *testing.T) {
	t.Parallel()
	e := start(t, options{})
	e.startNode("node-1")
	e.poolByHand("node-1", "10.9.0.0/24", map[string]string{"10.9.0.1": "", "10.9.0.2": ""})
	e.must(e.WaitNodeReady(within(t), "node-1"))
	before := e.witness.Generations()["node-1"]
	const pods = 50
	e.create(statefulSet("web", pods))
	e.await("wait for all pods to run, each with one entry", func(rows []witness.Row) bool {
		running := 0
		for _, r := range rows {
			if r.Running && len(r.Entries) == 1 {
				running++
			}
		}
		return running == pods
	})
	writes := e.witness.Generations()["node-1"] - before
	log, err := os.ReadFile(e.Process("node-1").LogPath())
	e.must(err)
	conflicts := bytes.Count(log, []byte("Operation cannot be fulfilled on ciliumnodes"))
	t.Logf("%d first placements: %d writes of the CiliumNode's spec, %d conflicts seen by the agent", pods, writes, conflicts)
	if writes > pods/2 {
		t.Errorf("%d writes of the CiliumNode's spec for %d claims, want at most %d", writes, pods, pods/2)
	}
	// An agent exits after ten conflicts in a row (Cilium fact 10).
	if conflicts > 5 {
		t.Errorf("the agent had %d conflicts, want at most 5", conflicts)
	}
}

// TestTwoActiveSchedulers runs two schedulers, one of them without leader election, while pods and whole workloads are
// deleted and created. The witness checks that no address is ever shared. In the end every pod has its former address.
// FIXEDIP_CHURN is the duration of the churn in seconds.
func TestTwoActiveSchedulers(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: threeNodes, controllerArgs: defaultPool})
	e.startScheduler("second", product.SchedulerOptions{NoElection: true})
	const workloads, replicas = 3, 5
	var all []string
	for i := range workloads {
		e.create(statefulSet(fmt.Sprintf("web%d", i), replicas))
		all = append(all, names(fmt.Sprintf("web%d", i), replicas)...)
	}
	before := e.awaitRunning(nil, all...)
	rounds := 0
	churn := time.Duration(fromEnv(t, "FIXEDIP_CHURN", 10)) * time.Second
	for end := time.Now().Add(churn); time.Now().Before(end); rounds++ {
		for _, name := range all {
			if rand.N(3) == 0 {
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
				e.must(client.IgnoreNotFound(e.api.Delete(within(t), pod)))
			}
		}
		// A new workload in each round provides first placements.
		extra := statefulSet(fmt.Sprintf("extra%d", rounds), replicas)
		e.create(extra)
		e.awaitRunning(nil, names(extra.Name, replicas)...)
		e.delete(extra)
	}
	e.await("wait for only the first workloads to be left, all running", func(rows []witness.Row) bool {
		for _, r := range rows {
			if !r.Running || r.State != "InUse" || len(r.Entries) != 1 {
				return false
			}
		}
		return len(rows) == len(all)
	})
	e.sameAddresses(before, e.awaitRunning(nil, all...))
	t.Logf("%d rounds of churn", rounds)
}
