package explain_test

import (
	"net/netip"
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
)

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// world is what stands about pod db/mysql-0 where nothing is wrong: it runs on node-1 with its
// address.
type world struct {
	explain.Things
	pools []pool.Node
}

func fine() *world {
	owned := pool.OwnedEntry("db", "mysql-0", "StatefulSet", "mysql")
	return &world{
		Things: explain.Things{
			Namespace: "db", Name: "mysql-0", Now: now,
			Pod: &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "db", Name: "mysql-0", UID: "pod-1", CreationTimestamp: metav1.Time{Time: now.Add(-5 * time.Minute)},
					OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "mysql", UID: "sts-1", Controller: ptr.To(true)}},
				},
				Spec:   corev1.PodSpec{NodeName: "node-1", SchedulerName: "fixedip-scheduler"},
				Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.0.1.6"}}},
			},
			Record: &v1alpha1.FixedIP{
				ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "mysql-0"},
				Spec: v1alpha1.FixedIPSpec{
					IPs: []string{"10.0.1.6"}, NodeName: "node-1", PodName: "mysql-0",
					Owner:   v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "mysql", UID: "sts-1"},
					Reclaim: v1alpha1.ReclaimPolicy{WhenDeleted: v1alpha1.Delete, WhenScaled: v1alpha1.Retain},
				},
				Status: v1alpha1.FixedIPStatus{Phase: v1alpha1.PhaseInUse},
			},
			Workload: &identity.Workload{Namespace: "db", Name: "mysql", UID: "sts-1", Replicas: ptr.To[int32](3)},
			Nodes:    map[string]*corev1.Node{"node-1": node(), "node-2": node()},
			Endpoint: &explain.Endpoint{PodUID: "pod-1"},
			Leader:   &explain.Leader{Holder: "controller-1", Renewed: now.Add(-time.Second)},
		},
		pools: []pool.Node{
			poolNode("node-1", "10.0.1.0/29", map[string]pool.Entry{"10.0.1.1": {}, "10.0.1.6": owned}),
			poolNode("node-2", "10.0.2.0/29", map[string]pool.Entry{"10.0.2.1": {}}),
		},
	}
}

func node() *corev1.Node {
	return &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
}

func poolNode(name, cidr string, entries map[string]pool.Entry) pool.Node {
	n := pool.Node{Name: name, PodCIDRs: []string{cidr}, Subnets: []netip.Prefix{netip.MustParsePrefix(cidr)}, Entries: map[netip.Addr]pool.Entry{}, Used: map[netip.Addr]string{}}
	for a, e := range entries {
		n.Entries[netip.MustParseAddr(a)] = e
	}
	return n
}

func (w *world) report() explain.Report {
	w.Pools = ledger.New()
	for _, n := range w.pools {
		w.Pools.SetNode(n)
	}
	return explain.Explain(w.Things)
}

// unplaced takes the pod off its node.
func (w *world) unplaced() {
	w.Pod.Spec.NodeName, w.Pod.Status.Phase, w.Pod.Status.PodIPs = "", corev1.PodPending, nil
	w.Endpoint = nil
}

// unreserved takes all that is kept for the pod.
func (w *world) unreserved() {
	w.Record = nil
	delete(w.pools[0].Entries, netip.MustParseAddr("10.0.1.6"))
}

// ofDeployment makes the pod one of a Deployment, whose slot it has.
func (w *world) ofDeployment() {
	w.Pod.OwnerReferences[0].Kind, w.Pod.OwnerReferences[0].Name = "ReplicaSet", "web-5"
	w.Record.Name = "web-10-0-1-6"
	w.Record.Spec.Owner = v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "deploy-1"}
	w.Workload = &identity.Workload{Namespace: "db", Name: "web", UID: "deploy-1", Replicas: ptr.To[int32](3)}
	w.pools[0].Entries[netip.MustParseAddr("10.0.1.6")] = pool.OwnedEntry("db", "mysql-0", "Deployment", "web")
}

// without takes the pod.
func (w *world) without() {
	w.Pod, w.Endpoint, w.Record.Status.Phase = nil, nil, v1alpha1.PhaseReserved
}

func ok(text string) explain.Finding { return explain.Finding{Text: text} }

func wrong(text, help string) explain.Finding {
	return explain.Finding{Wrong: true, Text: text, Help: help}
}

func TestFindings(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*world)
		want   []explain.Finding
	}{
		"all is well": {func(*world) {}, []explain.Finding{ok("It runs with its fixed address 10.0.1.6")}},
		"nothing of the name": {func(w *world) { w.without(); w.unreserved() }, []explain.Finding{
			wrong("There is no pod db/mysql-0, no FixedIP of its name, and no pool has an entry for it", ""),
		}},

		// The guide's first case: the pod got no fixed address.
		"another scheduler, not adopted": {func(w *world) { w.unreserved(); w.Pod.Spec.SchedulerName = "default-scheduler" }, []explain.Finding{
			wrong("Its address is not fixed: default-scheduler placed it, and the controller has not adopted it",
				`schedulerName: fixedip-scheduler in the pod template, or labels that the controller's --label-selector matches, or the annotation fixedip.io/enabled: "true"`),
		}},
		"of a Deployment": {func(w *world) {
			w.unreserved()
			w.Pod.OwnerReferences[0].Kind, w.Pod.OwnerReferences[0].Name = "ReplicaSet", "web-5"
		}, []explain.Finding{ok("It has no fixed address: it belongs to ReplicaSet web-5, and only the pods of StatefulSets have one by default")}},
		"of a Deployment that asks for one, waiting": {func(w *world) {
			w.unplaced()
			w.ofDeployment()
			w.unreserved()
			w.Pod.Annotations = map[string]string{"fixedip.io/enabled": "true"}
			w.Pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "no slot is free"}}
		}, []explain.Finding{
			wrong("It is annotated fixedip.io/enabled: true and waits for an address of ReplicaSet web-5", "its kind of workload in workloads of the scheduler's FixedIPArgs, and in --workload-kind of the controller"),
			ok("fixedip-scheduler said: no slot is free"),
		}},
		"of a Deployment that asks for one, placed without": {func(w *world) {
			w.ofDeployment()
			w.unreserved()
			w.Pod.Annotations = map[string]string{"fixedip.io/enabled": "true"}
			w.Pod.Spec.SchedulerName = "default-scheduler"
		}, []explain.Finding{
			wrong("It is annotated fixedip.io/enabled: true, and default-scheduler placed it without a fixed address", "schedulerName: fixedip-scheduler in the pod template; its kind of workload in workloads of the scheduler's FixedIPArgs, and in --workload-kind of the controller"),
		}},
		"of a Deployment, with a slot": {func(w *world) { w.ofDeployment() }, []explain.Finding{ok("It runs with its fixed address 10.0.1.6")}},
		"of nobody": {func(w *world) { w.unreserved(); w.Pod.OwnerReferences = nil }, []explain.Finding{
			ok("It has no fixed address: it belongs to no workload and does not say that it is to have one; with the annotation fixedip.io/enabled: \"true\" a pod that comes back under its name keeps its address"),
		}},
		"on the network of its host": {func(w *world) { w.unreserved(); w.Pod.Spec.HostNetwork = true }, []explain.Finding{
			ok("It has no fixed address: it uses the network of its host"),
		}},
		"opted out": {func(w *world) { w.unreserved(); w.Pod.Annotations = map[string]string{"fixedip.io/enabled": "false"} }, []explain.Finding{
			ok("It has no fixed address: it is annotated fixedip.io/enabled: false"),
		}},
		"an annotation that can't be read": {func(w *world) { w.Pod.Annotations = map[string]string{"fixedip.io/enabled": "no!"} }, []explain.Finding{
			wrong(`It can't be told whether it is to have a fixed address: annotation fixedip.io/enabled of pod db/mysql-0 is "no!"; write "true" or "false"`, "correct the annotation in the pod template"),
		}},
		"placed without a claim": {func(w *world) { w.unreserved() }, []explain.Finding{
			wrong("It is bound to node node-1 without an address of its own: the agent gives it any", ""),
		}},
		"not running yet": {func(w *world) { w.Pod.Status.PodIPs = nil }, []explain.Finding{
			ok("Node node-1 is about to start it; the agent there will give it 10.0.1.6"),
		}},
		"claimed, not recorded": {func(w *world) { w.Record = nil }, []explain.Finding{
			ok("It runs with its fixed address 10.0.1.6"), ok("The claim has no FixedIP yet; the controller writes one when the pod is bound"),
		}},
		"started before the agent saw the entry": {func(w *world) { w.Pod.Status.PodIPs = []corev1.PodIP{{IP: "10.0.1.1"}} }, []explain.Finding{
			wrong("It runs with 10.0.1.1, and 10.0.1.6 is kept for it on this node: the agent had not seen the entry when it started", "kubectl -n db delete pod mysql-0"),
		}},
		"strayed": {func(w *world) {
			w.Pod.Spec.NodeName, w.Pod.Spec.SchedulerName, w.Pod.Status.PodIPs = "node-2", "default-scheduler", []corev1.PodIP{{IP: "10.0.2.1"}}
		}, []explain.Finding{
			wrong("It runs with 10.0.2.1, and its address 10.0.1.6 belongs to node node-1", "schedulerName: fixedip-scheduler in the pod template brings it back to the node of its address"),
		}},
		"another pod has it": {func(w *world) { w.pools[0].Used[netip.MustParseAddr("10.0.1.6")] = "web/web-0" }, []explain.Finding{
			ok("It runs with its fixed address 10.0.1.6"),
			wrong("The agent of node node-1 says that 10.0.1.6 is used by web/web-0", "delete the pod of the two that may have another address"),
		}},

		"waiting for a cordoned node": {func(w *world) { w.unplaced(); w.Nodes["node-1"].Spec.Unschedulable = true }, []explain.Finding{
			wrong("Its address 10.0.1.6 belongs to node node-1, which is cordoned", "kubectl uncordon node-1; the annotation fixedip.io/failover of its StatefulSet lets it go to another node"),
		}},
		"waiting for a node that is not ready": {func(w *world) { w.unplaced(); w.Nodes["node-1"].Status.Conditions = nil }, []explain.Finding{
			wrong("Its address 10.0.1.6 belongs to node node-1, which is not ready", "bring that node back; the annotation fixedip.io/failover of its StatefulSet lets it go to another node"),
		}},
		"waiting for a node that is gone": {func(w *world) { w.unplaced(); delete(w.Nodes, "node-1") }, []explain.Finding{
			wrong("Its address 10.0.1.6 belongs to node node-1, which does not exist", "it waits for that node to come back under its name; the annotation fixedip.io/failover of its StatefulSet lets it go to another node"),
		}},
		"waiting for its home, as the node that it was moved to is gone": {func(w *world) {
			w.unplaced()
			a := netip.MustParseAddr("10.0.1.6")
			w.pools[1].Entries[a], w.pools[0].Entries[a] = w.pools[0].Entries[a], pool.MovedEntry("node-2", "db/mysql-0")
			w.Nodes["node-1"].Spec.Unschedulable = true
			delete(w.Nodes, "node-2")
		}, []explain.Finding{
			ok("Its address 10.0.1.6 belongs to node node-2, which does not exist; it goes back to node node-1, in whose subnet it is, which is cordoned"),
		}},
		"waiting to go to another node": {func(w *world) { w.unplaced(); delete(w.Nodes, "node-1"); w.Record.Spec.Failover = v1alpha1.Migrate }, []explain.Finding{
			wrong("Its address 10.0.1.6 belongs to node node-1, which does not exist", "it waits for that node to come back under its name"),
			ok("Its failover is Migrate: it goes to another node as soon as it is sure that its former pod does not run any more"),
		}},
		"waiting for a subnet that is gone": {func(w *world) { w.unplaced(); w.pools = w.pools[1:] }, []explain.Finding{
			wrong("Its address 10.0.1.6 is in no node's subnet, and was kept on node node-1", "a node that joins under the former name has the subnet again; kubectl -n db delete fixedip mysql-0 gives the address up"),
		}},
		"waiting for what the scheduler says": {func(w *world) {
			w.unplaced()
			w.Pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/2 nodes are available: 2 Insufficient cpu."}}
		}, []explain.Finding{
			ok("Its address 10.0.1.6 belongs to node node-1, which is ready for pods"), ok("fixedip-scheduler said: 0/2 nodes are available: 2 Insufficient cpu."),
		}},
		"waiting for the release": {func(w *world) { w.unplaced(); w.Record.DeletionTimestamp = &metav1.Time{Time: now} }, []explain.Finding{
			wrong("Its former address 10.0.1.6 is being released; it gets a new one when FixedIP mysql-0 is gone", ""),
		}},
		"waiting for the first time": {func(w *world) { w.unplaced(); w.unreserved() }, []explain.Finding{
			ok("It has no address yet; 2 nodes have one for it, 0 have none left"),
		}},
		"waiting for room": {func(w *world) { w.unplaced(); w.unreserved(); w.pools = nil }, []explain.Finding{
			wrong("It has no address yet, and none of 0 nodes has one for it", "give back addresses that nobody needs, or add nodes; kubectl fixedip nodes shows how full each is"),
		}},

		// The second: an address is not given back.
		"the StatefulSet is there": {func(w *world) { w.without() }, []explain.Finding{ok("Its address is kept for the pod that StatefulSet mysql is about to make")}},
		"scaled down, kept": {func(w *world) { w.without(); w.Workload.Replicas = ptr.To[int32](0) }, []explain.Finding{
			{Text: "Its address is kept for when StatefulSet mysql is scaled up again: whenScaled is Retain", Help: "kubectl -n db delete fixedip mysql-0 gives the address back"},
		}},
		"deleted, kept": {func(w *world) { w.without(); w.Workload = nil; w.Record.Spec.Reclaim.WhenDeleted = v1alpha1.Retain }, []explain.Finding{
			{Text: "Its address is kept although StatefulSet mysql is gone: whenDeleted is Retain", Help: "kubectl -n db delete fixedip mysql-0 gives the address back"},
		}},
		"deleted, kept for a while": {func(w *world) {
			w.without()
			w.Workload = nil
			w.Record.Status.ExpiresAt = &metav1.Time{Time: now.Add(time.Hour)}
		}, []explain.Finding{
			ok("Its address is kept until 2026-11-21 13:00:00 UTC, in case a pod comes back under the name"),
		}},
		"nobody gives it back": {func(w *world) { w.without(); w.Workload = nil; w.Leader.Renewed = now.Add(-10 * time.Minute) }, []explain.Finding{
			wrong("StatefulSet mysql is gone, and its address is about to go back", ""),
			wrong("The leading fixedip-controller (controller-1) has been silent for 10m: nothing is recorded or given back", "look at the pods of fixedip-controller"),
		}},
		"nobody leads": {func(w *world) { w.Leader.Holder = "" }, []explain.Finding{
			ok("It runs with its fixed address 10.0.1.6"), wrong("No fixedip-controller leads: nothing is recorded or given back", "look at the pods of fixedip-controller"),
		}},
		"made beforehand": {func(w *world) { w.without(); w.Workload = nil; w.Record.Spec.Owner.UID = "" }, []explain.Finding{
			ok("Its address is kept for StatefulSet mysql, which has never been there"),
		}},
		"an entry alone": {func(w *world) { w.without(); w.Record = nil }, []explain.Finding{
			wrong("A pool has an entry for it, and there is neither a pod nor a FixedIP", "if no pod is to have it: remove the owner from the entry in the CiliumNode"),
		}},

		"a slot without a pod": {func(w *world) { w.ofDeployment(); w.without() }, []explain.Finding{
			ok("Its address is kept for the next pod that Deployment web makes"),
		}},
		"a workload that can't be read": {func(w *world) { w.without(); w.Workload, w.Unread = nil, "forbidden" }, []explain.Finding{
			ok("Its address is kept for StatefulSet mysql; whether that is still there can't be told: forbidden"),
		}},
		"what the controller found": {func(w *world) {
			w.Record.Status.Conditions = []metav1.Condition{
				{Type: "Homed", Status: metav1.ConditionTrue, Reason: "SubnetAssigned", Message: "its subnet has node node-1"},
				{Type: "Projected", Status: metav1.ConditionFalse, Reason: "Claimed", Message: "10.0.1.6 belongs to web/web-0", LastTransitionTime: metav1.Time{Time: now.Add(-time.Minute)}},
				{Type: "Mismatch", Status: metav1.ConditionFalse, Reason: "Right", Message: "it runs with what is kept"},
				{Type: "Conflict", Status: metav1.ConditionTrue, Reason: "UsedByOther", Message: "web/web-0 has 10.0.1.6", LastTransitionTime: metav1.Time{Time: now.Add(-time.Hour)}},
			}
		}, []explain.Finding{
			ok("It runs with its fixed address 10.0.1.6"),
			wrong("fixedip-controller said 60s ago: 10.0.1.6 belongs to web/web-0 (Claimed)", ""),
			wrong("fixedip-controller said 60m ago: web/web-0 has 10.0.1.6 (UsedByOther)", ""),
		}},

		// The third: a CiliumEndpoint that is left over.
		"an endpoint left over": {func(w *world) { w.without(); w.Endpoint = &explain.Endpoint{PodUID: "pod-0"} }, []explain.Finding{
			ok("Its address is kept for the pod that StatefulSet mysql is about to make"),
			wrong("There still is a CiliumEndpoint of its name", "if the pod is gone for good: kubectl -n db delete ciliumendpoint mysql-0"),
		}},
		"an endpoint of a former pod": {func(w *world) { w.Endpoint.PodUID = "pod-0" }, []explain.Finding{
			ok("It runs with its fixed address 10.0.1.6"),
			wrong("The CiliumEndpoint of its name belongs to a former pod; an agent does not take over one that another made", "if the pod is gone for good: kubectl -n db delete ciliumendpoint mysql-0"),
		}},
		"an endpoint that is stuck": {func(w *world) {
			w.Endpoint = &explain.Endpoint{PodUID: "pod-0", Deleted: &metav1.Time{Time: now.Add(-time.Hour)}}
		}, []explain.Finding{
			ok("It runs with its fixed address 10.0.1.6"),
			wrong("The CiliumEndpoint of a former pod is stuck: its deletion was asked for 60m ago", `kubectl -n db patch ciliumendpoint mysql-0 --type=merge -p '{"metadata":{"finalizers":[]}}'`),
		}},

		// The fourth: two nodes have one subnet.
		"subnets overlap": {func(w *world) { w.unplaced(); w.pools[1] = poolNode("node-2", "10.0.1.0/28", nil) }, []explain.Finding{
			ok("Its address 10.0.1.6 belongs to node node-1, which is ready for pods"),
			wrong("The subnets of node node-1 overlap those of node node-2; nothing in them is handed out", "change spec.ipam.podCIDRs of one of the two CiliumNodes"),
		}},
	} {
		w := fine()
		c.change(w)
		if diff := cmp.Diff(c.want, w.report().Findings); diff != "" {
			t.Errorf("%s (-want +got): %s", name, diff)
		}
	}
}

func TestFacts(t *testing.T) {
	w := fine()
	w.unplaced()
	w.Nodes["node-1"].Spec.Unschedulable = true
	want := []explain.Fact{
		{What: "Pod", Is: "db/mysql-0, not placed for 5m"},
		{What: "FixedIP", Is: "10.0.1.6, InUse, for StatefulSet mysql"},
		{What: "Pool", Is: "node node-1 gives it 10.0.1.6"},
		{What: "Node", Is: "node-1: cordoned; 4 IPv4 addresses to choose from; subnets 10.0.1.0/29"},
	}
	if diff := cmp.Diff(want, w.report().Facts); diff != "" {
		t.Errorf("(-want +got): %s", diff)
	}
	w = fine()
	w.without()
	w.unreserved()
	want = []explain.Fact{{What: "Pod", Is: "db/mysql-0 does not exist"}, {What: "FixedIP", Is: "none"}, {What: "Pool", Is: "no node has an entry for it"}}
	if diff := cmp.Diff(want, w.report().Facts); diff != "" {
		t.Errorf("(-want +got): %s", diff)
	}
}
