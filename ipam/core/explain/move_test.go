// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/explain"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/ledger"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/test/gen"
)

// TestMove compares whole plans of moves of db/mysql-0 from node-1.
func TestMove(t *testing.T) {
	const chooses = "# The scheduler chooses the node: it is sure to be node-2 only if the pod may run on no other node, for example because of spec.affinity."
	all := []string{"kubectl cordon node-1", "kubectl -n db delete pod mysql-0", chooses, "kubectl -n db get pod mysql-0 -o wide --watch", "kubectl uncordon node-1"}
	problem := func(text, help string) explain.MovePlan {
		return explain.MovePlan{Report: explain.Report{Findings: []explain.Finding{wrong(text, help)}}}
	}
	for name, c := range map[string]struct {
		change func(*world, *explain.MoveInputs)
		want   explain.MovePlan
	}{
		"the policy is Wait": {
			func(*world, *explain.MoveInputs) {},
			explain.MovePlan{SetsPolicy: true, Steps: append(append([]string{}, all...), "# The failover policy of StatefulSet mysql stays Migrate until you change the annotation fixedip.io/failover.")},
		},
		"the policy is Migrate": {
			func(w *world, _ *explain.MoveInputs) { w.Record.Spec.Failover = v1alpha1.Migrate },
			explain.MovePlan{Steps: all},
		},
		"the policy of the configuration is Migrate": {
			func(_ *world, in *explain.MoveInputs) { in.Failover = v1alpha1.Migrate }, explain.MovePlan{Steps: all},
		},
		"a bare pod": {
			func(w *world, in *explain.MoveInputs) {
				in.NoWorkload = true
				w.Record.Spec.Owner = v1alpha1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "mysql-0"}
			},
			explain.MovePlan{SetsPolicy: true, Steps: append(slices.Insert(slices.Clone(all), 2, "# Create pod mysql-0 again: no controller does that."), "# The failover policy of FixedIP mysql-0 stays Migrate until you change spec.failover.")},
		},
		"the node is cordoned and the pod waits": {
			func(w *world, in *explain.MoveInputs) {
				w.unplaced()
				w.Nodes["node-1"].Spec.Unschedulable, in.Failover = true, v1alpha1.Migrate
			},
			explain.MovePlan{Steps: []string{chooses, "kubectl -n db get pod mysql-0 -o wide --watch"}},
		},
		"the pool of the node already has the address": {
			func(w *world, _ *explain.MoveInputs) { w.Record.Spec.NodeName = "node-2" },
			explain.MovePlan{Report: explain.Report{Findings: []explain.Finding{ok("The pool of node node-2 already has 10.0.1.6")}}},
		},
		"a slot": {
			func(w *world, _ *explain.MoveInputs) { w.ofDeployment() },
			problem("The addresses are a slot of Deployment web, and a slot does not move", "delete the pod and the FixedIP: the workload creates another pod, which may get another address on another node"),
		},
		"no address":       {func(w *world, _ *explain.MoveInputs) { w.Record.Spec.IPs = nil }, problem("FixedIP mysql-0 names no address", "")},
		"is being deleted": {func(w *world, _ *explain.MoveInputs) { w.Record.DeletionTimestamp = &metav1.Time{Time: now} }, problem("FixedIP mysql-0 is being deleted", "")},
		"the node does not exist": {
			func(_ *world, in *explain.MoveInputs) { in.To = "node-9" }, problem("Node node-9 does not exist", ""),
		},
		"the other node is cordoned": {
			func(w *world, _ *explain.MoveInputs) { w.Nodes["node-2"].Spec.Unschedulable = true },
			problem("Node node-2 is cordoned", "choose a node that is ready and not cordoned"),
		},
		"the other node is being deleted": {
			func(w *world, _ *explain.MoveInputs) { w.Nodes["node-2"].DeletionTimestamp = &metav1.Time{Time: now} },
			problem("Node node-2 is being deleted", "choose a node that is ready and not cordoned"),
		},
		"the agent of the other node has not reported": {
			func(w *world, _ *explain.MoveInputs) { w.pools[1].Unreported = true },
			problem("Node node-2 has no pool, or its agent has not reported yet which addresses are in use", "check the cilium pod of the node"),
		},
		"the configuration does not allow it": {
			func(_ *world, in *explain.MoveInputs) { in.MigrationAllowed = ptr.To(false) },
			problem("The configuration does not allow an address to leave the subnet of its node: allowAddressMigration is false", "set allowAddressMigration to true if the routing of the cluster carries single addresses"),
		},
		"the node cannot use a volume": {
			func(w *world, _ *explain.MoveInputs) { w.volumeIn("a") },
			problem("Volume pv-1 (claim data-mysql-0) cannot be used on node node-2", "choose a node that can use the volume"),
		},
		"the affinity of the pod excludes the node": {
			func(w *world, _ *explain.MoveInputs) { w.Pod.Spec.NodeSelector = map[string]string{"disk": "fast"} },
			problem("The node affinity of pod mysql-0 excludes node node-2", "change spec.nodeSelector or spec.affinity in the pod template or, for a bare pod, when you create the pod again"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := fine()
			in := explain.MoveInputs{To: "node-2"}
			c.change(w, &in)
			w.report()
			in.Record, in.Pod, in.Nodes, in.Pools, in.Volumes = w.Record, w.Pod, w.Nodes, w.Pools, w.Volumes
			if diff := cmp.Diff(c.want, explain.Move(in)); diff != "" {
				t.Errorf("plan (-want +got): %s", diff)
			}
		})
	}
}

// TestMoveSubnet compares whole reports about the successor of a node.
func TestMoveSubnet(t *testing.T) {
	for name, c := range map[string]struct {
		node, before, to string
		want             []explain.Finding
	}{
		"the node exists": {"node-1", "", "node-2", []explain.Finding{ok("Node node-1 keeps the subnet 10.0.1.0/24 until the Node is deleted. Node node-2 then gets the subnet at once, with all fixed addresses in it")}},
		"the node is gone, and there was a successor": {"node-9", "node-3", "node-2", []explain.Finding{
			ok("No node has the subnet 10.0.1.0/24. Node node-2 gets it, with all fixed addresses in it"), ok("Node node-3 was the successor until now"),
		}},
		"the successor does not exist yet": {"node-9", "", "node-8", []explain.Finding{
			ok("No node has the subnet 10.0.1.0/24. Node node-8 gets it, with all fixed addresses in it"), ok("Node node-8 does not exist yet; the subnet waits for it"),
		}},
		"the node has it": {"node-1", "", "node-1", []explain.Finding{ok("Node node-1 already has the subnet 10.0.1.0/24")}},
	} {
		ns := &v1alpha1.NodeSubnet{Spec: v1alpha1.NodeSubnetSpec{CIDR: "10.0.1.0/24", NodeName: c.node, Successor: c.before}}
		got := explain.MoveSubnet(explain.SubnetMoveInputs{Subnet: ns, To: c.to, Nodes: fine().Nodes})
		if diff := cmp.Diff(c.want, got.Findings); diff != "" {
			t.Errorf("%s: findings (-want +got): %s", name, diff)
		}
	}
}

// TestReserve compares whole reports about reservations for pod db/new-0.
func TestReserve(t *testing.T) {
	const other = "choose another address; kubectl fixedip ip shows the use of this one"
	node1 := gen.NodePool("node-1", "10.0.1.0/24", map[string]pool.Entry{
		"10.0.1.1": {}, "10.0.1.2": {}, "10.0.1.3": {}, "10.0.1.5": pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql"), "10.0.1.9": pool.CooldownEntry("", now.Add(-time.Minute)), "10.0.1.250": pool.ForOwner("router"),
	}, gen.UsedBy("web/x", "10.0.1.2"), gen.UsedBy("router", "10.0.1.3"), gen.UsedBy("db/new-0", "10.0.1.30"))
	node2 := gen.NodePool("node-2", "fd00::/120", nil)
	for name, c := range map[string]struct {
		addrs    string
		more     string
		noPools  bool
		pods     []corev1.Pod
		findings []explain.Finding
	}{
		"free":                                 {addrs: "10.0.1.20", findings: []explain.Finding{ok("The pool of node node-1 gets the entry of 10.0.1.20")}},
		"a dynamic entry":                      {addrs: "10.0.1.1", findings: []explain.Finding{ok("The reservation waits: IP 10.0.1.1 has a dynamic entry in the pool of node node-1, so that any pod may be using it; the controller removes that entry when a FixedIP reserves the IP and no pod uses it; otherwise request an address nearer to the top of the node's subnet")}},
		"used by a pod":                        {addrs: "10.0.1.2", findings: []explain.Finding{wrong("IP 10.0.1.2 on node node-1 is still in use by a pod of another namespace, as the agent reports", other)}},
		"used by the node":                     {addrs: "10.0.1.3", findings: []explain.Finding{wrong("IP 10.0.1.3 on node node-1 is still in use by the node itself (router), as the agent reports", other)}},
		"of another pod":                       {addrs: "10.0.1.5", findings: []explain.Finding{wrong("IP 10.0.1.5 on node node-1 belongs to pod db/mysql-0", other)}},
		"of another FixedIP":                   {addrs: "10.0.1.77", findings: []explain.Finding{wrong("A FixedIP reserves 10.0.1.77 for pod db/web-7", other)}},
		"of a FixedIP of another namespace":    {addrs: "10.0.1.88", findings: []explain.Finding{wrong("A FixedIP reserves 10.0.1.88 for a pod of another namespace", other)}},
		"cools down":                           {addrs: "10.0.1.9", findings: []explain.Finding{ok("The reservation waits: IP 10.0.1.9 on node node-1 has been cooling down since 2026-11-21T11:59:00Z; it becomes available when the cooldown is over and the Cilium agent has confirmed that no pod uses it")}},
		"of the node":                          {addrs: "10.0.1.250", findings: []explain.Finding{wrong("IP 10.0.1.250 on node node-1 is reserved for the node itself (router)", other)}},
		"the edge of the subnet":               {addrs: "10.0.1.255", findings: []explain.Finding{wrong("IP 10.0.1.255 is the first or last address of a subnet of node node-1, which no pod can have", other)}},
		"in no subnet":                         {addrs: "10.0.9.9", findings: []explain.Finding{ok("The reservation waits: IP 10.0.9.9 is in no node's subnet; it becomes available when a node gets a subnet that contains it")}},
		"used by an earlier pod with the name": {addrs: "10.0.1.30", findings: []explain.Finding{ok("The reservation waits: IP 10.0.1.30 on node node-1 is still in use by the former pod db/new-0; it becomes available when no pod has it and the Cilium agent no longer reports it as used")}},
		"two nodes": {addrs: "10.0.1.20", more: "fd00::5", findings: []explain.Finding{
			ok("The pool of node node-1 gets the entry of 10.0.1.20"), ok("The pool of node node-2 gets the entry of fd00::5"),
			wrong("10.0.1.20 belongs to node node-1 and fd00::5 to node node-2: no pod can have both", "choose addresses of one node"),
		}},
		"a pod runs with it, without rights to the pools": {
			addrs: "10.0.1.20", noPools: true, pods: []corev1.Pod{*gen.Pod("x-0", gen.On("node-1", "10.0.1.20"), gen.Running)},
			findings: []explain.Finding{wrong("10.0.1.20 is used by pod db/x-0", other)},
		},
		"reserved, without rights to the pools": {addrs: "10.0.1.77", noPools: true, findings: []explain.Finding{wrong("A FixedIP reserves 10.0.1.77 for pod db/web-7", other)}},
	} {
		t.Run(name, func(t *testing.T) {
			l := ledger.New()
			if !c.noPools {
				l.SetNode(node1)
				l.SetNode(node2)
			}
			l.SetReservation(ledger.Reservation{Record: "db/web-7", Owner: "db/web-7", Addrs: []netip.Addr{netip.MustParseAddr("10.0.1.77")}})
			l.SetReservation(ledger.Reservation{Record: "far/x-0", Owner: "far/x-0", Addrs: []netip.Addr{netip.MustParseAddr("10.0.1.88")}})
			in := explain.ReserveInputs{Owner: "db/new-0", Addrs: []netip.Addr{netip.MustParseAddr(c.addrs)}, Pools: l, Reservations: l, Pods: c.pods}
			if c.more != "" {
				in.Addrs = append(in.Addrs, netip.MustParseAddr(c.more))
			}
			if c.noPools {
				in.Pools = nil
			}
			if diff := cmp.Diff(c.findings, explain.Reserve(in).Findings); diff != "" {
				t.Errorf("findings (-want +got): %s", diff)
			}
		})
	}
}

// TestRelease compares all sentences about the release of FixedIP db/mysql-0.
func TestRelease(t *testing.T) {
	const another = "StatefulSet mysql exists: the next pod mysql-0 gets another address."
	const fewer = "Deployment web has one slot fewer; its next pod without a slot gets another address."
	for name, c := range map[string]struct {
		change  func(*world)
		restart bool
		want    []string
	}{
		"a pod waits, and would be restarted": {func(w *world) { w.unplaced() }, true, []string{"Pod db/mysql-0 has no node yet. It gets another address when 10.0.1.6 is released.", another}},
		"a bare pod runs with another address, and would be restarted": {func(w *world) {
			w.Pod.Status.PodIPs[0].IP, w.Record.Spec.Owner.Kind, w.Workload = "10.0.1.1", identity.PodKind, nil
		}, true, []string{"Pod db/mysql-0 does not run with 10.0.1.6. 10.0.1.6 is released."}},
		"a pod has no IP yet":             {func(w *world) { w.Pod.Status = corev1.PodStatus{Phase: corev1.PodPending} }, false, []string{"Pod db/mysql-0 on node node-1 is Pending and does not use 10.0.1.6 now. When the pod is deleted or runs with another address, 10.0.1.6 is released; until then the FixedIP is in deletion.", another}},
		"a pod has ended":                 {func(w *world) { w.Pod.Status.Phase = corev1.PodFailed }, false, []string{"Pod db/mysql-0 on node node-1 is Failed and does not use 10.0.1.6 now. When the pod is deleted or runs with another address, 10.0.1.6 is released; until then the FixedIP is in deletion.", another}},
		"a pod has ended, and is deleted": {func(w *world) { w.Pod.Status.Phase = corev1.PodFailed }, true, []string{"Pod db/mysql-0 is deleted. When it has stopped, 10.0.1.6 is released.", another}},
		"a pod of a slot waits":           {func(w *world) { w.ofDeployment(); w.unplaced() }, false, []string{"Pod db/mysql-0 has the slot. When the pod is deleted or has ended, 10.0.1.6 is released; until then the FixedIP is in deletion.", fewer}},
		"a pod of a slot has ended":       {func(w *world) { w.ofDeployment(); w.Pod.Status.Phase = corev1.PodFailed }, true, []string{"Pod db/mysql-0 does not run with 10.0.1.6. 10.0.1.6 is released.", fewer}},
		"a pod runs":                      {func(*world) {}, false, []string{"Pod db/mysql-0 on node node-1 keeps 10.0.1.6 and runs on. When the pod is deleted, 10.0.1.6 is released; until then the FixedIP is in deletion.", another}},
		"a pod runs and is restarted":     {func(*world) {}, true, []string{"Pod db/mysql-0 is deleted. When it has stopped, 10.0.1.6 is released.", another}},
		"a pod waits":                     {func(w *world) { w.unplaced() }, false, []string{"Pod db/mysql-0 has no node yet. It gets another address when 10.0.1.6 is released.", another}},
		"a pod runs with another address": {func(w *world) { w.Pod.Status.PodIPs[0].IP = "10.0.1.1" }, false, []string{"Pod db/mysql-0 does not run with 10.0.1.6. 10.0.1.6 is released.", another}},
		"no pod and no workload":          {func(w *world) { w.deletePod(); w.Workload = nil }, false, []string{"Pod db/mysql-0 does not exist. 10.0.1.6 is released, and available to other pods after the cooldown."}},
		"the workload is unknown":         {func(w *world) { w.Workload, w.Unread = nil, "forbidden" }, true, []string{"Pod db/mysql-0 is deleted. When it has stopped, 10.0.1.6 is released.", "Whether StatefulSet mysql exists is unknown: forbidden."}},
		"the workload has opted out":      {func(w *world) { w.deletePod(); w.Workload.HostNetwork = true }, false, []string{"Pod db/mysql-0 does not exist. 10.0.1.6 is released, and available to other pods after the cooldown."}},
		"a slot":                          {func(w *world) { w.ofDeployment(); w.deletePod() }, false, []string{"Pod db/mysql-0 does not exist. 10.0.1.6 is released, and available to other pods after the cooldown.", fewer}},
		"a bare pod is restarted":         {func(w *world) { w.Record.Spec.Owner.Kind, w.Workload = identity.PodKind, nil }, true, []string{"Pod db/mysql-0 is deleted. When it has stopped, 10.0.1.6 is released.", "Pod db/mysql-0 is not created again, because it has no controller."}},
		"is being deleted, without addresses": {func(w *world) {
			w.Record.DeletionTimestamp, w.Record.Spec.IPs, w.Workload = &metav1.Time{Time: now}, nil, nil
		}, false, []string{"FixedIP mysql-0 is being deleted already."}},
		"no address": {func(w *world) { w.Record.Spec.IPs, w.Workload = nil, nil }, false, []string{"FixedIP mysql-0 names no address."}},
	} {
		w := fine()
		c.change(w)
		got, deletes := explain.Release(explain.ReleaseInputs{Record: w.Record, Pod: w.Pod, Workload: w.Workload, Unread: w.Unread, RestartPod: c.restart})
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: effects (-want +got): %s", name, diff)
		}
		if announced := slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, " is deleted. When it has stopped") }); deletes != announced {
			t.Errorf("%s: the pod is deleted: %v, but the effects announce: %v", name, deletes, announced)
		}
	}
}
