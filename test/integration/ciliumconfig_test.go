// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/hack/product"
	"fixedip.io/fixedip/ipam/controller/poolguard"
)

// TestSettingsFollowCilium checks that both programs read the routing mode of Cilium. With a tunnel, both accept the default
// failover policy Migrate, although allowAddressMigration is not set. With native routing, both refuse that policy. The
// controller reports another IPAM mode than crd, but runs nevertheless.
func TestSettingsFollowCilium(t *testing.T) {
	t.Parallel()
	e := startCluster(t)
	cilium := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "cilium-config"},
		Data:       map[string]string{"ipam": "cluster-pool", "routing-mode": "tunnel", "ipam-cilium-node-update-rate": "15s"},
	}
	e.create(cilium)
	e.startController("controller", append([]string{"--failover=Migrate"}, defaultPool...)...)
	e.scheduler = e.startScheduler("scheduler", product.SchedulerOptions{Failover: "Migrate", FollowCilium: true})
	e.startNode("node-1")
	e.must(e.WaitNodeReady(e.whileAllRun(), "node-1"))
	e.create(statefulSet("web", 1))
	e.awaitRunning(nil, "web-0")
	e.event("cilium-config", "WrongIPAMMode", "ipam is cluster-pool, but fixedip needs crd")

	cilium.Data["routing-mode"] = "native"
	e.must(e.api.Update(within(t), cilium))
	const refusal = `"Migrate": addresses cannot migrate while allowAddressMigration is false`
	e.startController("native-controller", append([]string{"--failover=Migrate"}, defaultPool...)...)
	for name, p := range map[string]*cluster.Process{
		"controller": e.controller,
		"scheduler":  e.startScheduler("native-scheduler", product.SchedulerOptions{Failover: "Migrate", FollowCilium: true}),
	} {
		select {
		case <-p.Exited():
		case <-within(t).Done():
			t.Fatalf("the %s runs with the policy Migrate and native routing, want it to exit", name)
		}
		if !strings.Contains(p.LogTail(), refusal) {
			t.Errorf("the %s ended without the error %q", name, refusal)
		}
	}
}

// TestClusterPoolsAreGuarded checks that the controller writes its cluster pools into the ConfigMap that the admission
// policy reads, and that the next controller undoes a change by another client.
func TestClusterPoolsAreGuarded(t *testing.T) {
	t.Parallel()
	e := start(t, options{controllerArgs: defaultPool, noScheduler: true})
	guard := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: poolguard.Name}}
	pools := func() string {
		if err := e.api.Get(within(t), client.ObjectKeyFromObject(guard), guard); client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
		return guard.Data["pools"]
	}
	e.eventually("the controller to write the cluster pools", func() bool { return pools() == "10.240.0.0/16" })
	guard.Data["pools"] = "0.0.0.0/0"
	e.must(e.api.Update(within(t), guard))
	// The next leader writes the ConfigMap at its start. The current leader would take up to a minute to undo the change.
	e.must(e.controller.Kill())
	e.startController("next", defaultPool...)
	e.eventually("the next controller to undo the change", func() bool { return pools() == "10.240.0.0/16" })
}
