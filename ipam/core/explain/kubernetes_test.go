// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package explain_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"fixedip.io/fixedip/ipam/core/explain"
	"fixedip.io/fixedip/ipam/core/identity"
)

// event returns a warning that occurred some time ago.
func event(kind, name string, uid types.UID, reason, message string, ago time.Duration) corev1.Event {
	return corev1.Event{
		InvolvedObject: corev1.ObjectReference{Kind: kind, Namespace: "db", Name: name, UID: uid},
		Type:           corev1.EventTypeWarning, Reason: reason, Message: message, LastTimestamp: metav1.Time{Time: now.Add(-ago)},
	}
}

// TestKubernetes compares whole reports about pods that Kubernetes does not create, place, start or evict, and about a pod
// without an address whose workload, a Deployment, is of a configured kind.
func TestKubernetes(t *testing.T) {
	const quota = `create Pod mysql-0 in StatefulSet mysql failed error: pods "mysql-0" is forbidden: exceeded quota: small, requested: pods=1, used: pods=3, limited: pods=3`
	poolFact := explain.Fact{What: "Pool", Is: "node node-1 has an entry for 10.0.1.6"}
	nodeFact := explain.Fact{What: "Node", Is: "node-1: ready; free IPv4 addresses: 4; subnets: 10.0.1.0/29"}
	inUse := explain.Fact{What: "FixedIP", Is: "10.0.1.6, InUse, for StatefulSet mysql"}
	budget := func(name string, allowed int32) policyv1.PodDisruptionBudget {
		b := policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: name}}
		b.Spec.Selector, b.Status.DisruptionsAllowed = &metav1.LabelSelector{}, allowed
		return b
	}
	for name, c := range map[string]struct {
		change func(*world)
		want   explain.Report
	}{
		"a quota prevents the pod": {
			func(w *world) {
				w.deletePod()
				w.Events = []corev1.Event{
					event("StatefulSet", "mysql", "sts-1", "FailedCreate", "create Pod mysql-0 in StatefulSet mysql failed error: no reason", time.Hour),
					event("StatefulSet", "mysql", "sts-1", "FailedCreate", quota, time.Minute),
					event("StatefulSet", "mysql", "sts-1", "FailedCreate", "create Pod mysql-01 in StatefulSet mysql failed", time.Second),
				}
			},
			explain.Report{
				Facts: []explain.Fact{{What: "Pod", Is: "db/mysql-0 does not exist"}, {What: "FixedIP", Is: "10.0.1.6, not reconciled yet, for StatefulSet mysql"}, poolFact, nodeFact},
				Findings: []explain.Finding{
					wrong("StatefulSet mysql cannot create the pod (last event 60s ago): "+quota, "raise the ResourceQuota that the message names, or delete pods that are not needed; the workload tries again"),
					ok("Address 10.0.1.6 is reserved for the pod that StatefulSet mysql is about to create"),
				},
			},
		},
		"scheduling gates": {
			func(w *world) {
				w.unplaced()
				w.Pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/quota"}, {Name: "example.com/data"}}
			},
			explain.Report{
				Facts: []explain.Fact{{What: "Pod", Is: "db/mysql-0, not placed for 5m"}, inUse, poolFact, nodeFact},
				Findings: []explain.Finding{
					wrong("No scheduler places the pod while it has scheduling gates: example.com/quota, example.com/data", "the component that set a gate has to remove it"),
					ok("Address 10.0.1.6 of the pod belongs to node node-1, which is ready and not cordoned"),
				},
				Waits: true,
			},
		},
		"no scheduler leads": {
			func(w *world) {
				w.unplaced()
				w.SchedulerLease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "fixedip-system", Name: "fixedip-scheduler"}, Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("scheduler-1"), RenewTime: &metav1.MicroTime{Time: now.Add(-time.Hour)}}}
			},
			explain.Report{
				Facts: []explain.Fact{{What: "Pod", Is: "db/mysql-0, not placed for 5m"}, inUse, poolFact, nodeFact},
				Findings: []explain.Finding{
					ok("Address 10.0.1.6 of the pod belongs to node node-1, which is ready and not cordoned"),
					wrong("fixedip-scheduler scheduler-1 holds Lease fixedip-system/fixedip-scheduler and has not renewed it for 60m: no pod is placed", "check the pods of fixedip-scheduler; ignore this if leaderElection.leaderElect is false in its configuration"),
				},
				Waits: true,
			},
		},
		"the sandbox of the pod cannot be created": {
			func(w *world) {
				w.Pod.Status.PodIPs, w.Pod.Status.Phase = nil, corev1.PodPending
				w.Events = []corev1.Event{
					event("Pod", "mysql-0", "pod-0", "FailedMount", "of the previous pod", time.Second),
					event("Pod", "mysql-0", "pod-1", "FailedScheduling", "before the bind", time.Second),
					event("Pod", "mysql-0", "pod-1", "FailedCreatePodSandBox", "no IP is available", time.Minute),
				}
			},
			explain.Report{
				Facts: []explain.Fact{{What: "Pod", Is: "db/mysql-0, Pending on node node-1"}, inUse, poolFact, nodeFact},
				Findings: []explain.Finding{
					ok("The pod is bound to node node-1 and has no IP yet; the pool of the node has its address 10.0.1.6"),
					wrong("Event FailedCreatePodSandBox of the pod, 60s ago: no IP is available", ""),
				},
				Waits: true,
			},
		},
		"budgets prevent the eviction of a pod with a wrong address": {
			func(w *world) {
				w.Pod.Status.PodIPs = []corev1.PodIP{{IP: "10.0.1.1"}}
				w.Budgets = []policyv1.PodDisruptionBudget{budget("strict", 0), budget("more", 1)}
			},
			explain.Report{
				Facts: []explain.Fact{{What: "Pod", Is: "db/mysql-0, Running on node node-1 with 10.0.1.1"}, inUse, poolFact, nodeFact},
				Findings: []explain.Finding{
					wrong("The pod runs with 10.0.1.1, but 10.0.1.6 is reserved for the pod on this node; the agent probably had not seen the reservation when the pod started",
						"kubectl -n db delete pod mysql-0; the controller evicts the pod after --mismatch-grace-period, unless it is a bare pod or its mismatch policy is Report"),
					wrong("PodDisruptionBudget strict allows no disruption now, so the controller cannot evict the pod", "wait until the budget allows a disruption, or change it"),
					wrong("The API server evicts no pod with more than one PodDisruptionBudget, and these select the pod: strict, more", "delete or change PodDisruptionBudgets until only one selects the pod"),
				},
			},
		},
		"a Deployment whose kind is configured": {
			func(w *world) {
				w.ofDeployment()
				w.unreserved()
				w.Pod.Annotations = map[string]string{"fixedip.io/enabled": "true"}
				w.Kinds = identity.NewKinds(identity.Kind{APIGroup: "apps", Kind: "Deployment", Identity: identity.Slot})
				w.Controllers = func(string, metav1.OwnerReference) (*metav1.OwnerReference, bool) {
					return &metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", Controller: ptr.To(true)}, true
				}
				w.unplaced()
			},
			explain.Report{
				Facts: []explain.Fact{{What: "Pod", Is: "db/mysql-0, not placed for 5m"}, {What: "FixedIP", Is: "none"}, {What: "Pool", Is: "no node has an owned entry for the pod"}},
				Findings: []explain.Finding{
					ok("The pod has no address yet; nodes with a free IPv4 or IPv6 address: 2, without: 0"),
				},
				Waits: true,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := fine()
			c.change(w)
			got := w.report()
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("report (-want +got): %s", diff)
			}
		})
	}
}

// TestNamespaceRights compares whole reports for a user who may read only the objects of one namespace.
func TestNamespaceRights(t *testing.T) {
	notRead := explain.Fact{What: "Not read", Is: "CiliumNodes (forbidden), nodes (forbidden)"}
	inUse, onNode := explain.Fact{What: "FixedIP", Is: "10.0.1.6, InUse, for StatefulSet mysql"}, explain.Fact{What: "Node", Is: "node-1"}
	for name, c := range map[string]struct {
		change func(*world)
		want   explain.Report
	}{
		"runs with its address": {func(*world) {}, explain.Report{
			Facts:    []explain.Fact{{What: "Pod", Is: "db/mysql-0, Running on node node-1 with 10.0.1.6"}, inUse, onNode, notRead},
			Findings: []explain.Finding{ok("The pod runs with its fixed address 10.0.1.6")},
		}},
		"runs without a FixedIP": {func(w *world) { w.Record = nil }, explain.Report{
			Facts:    []explain.Fact{{What: "Pod", Is: "db/mysql-0, Running on node node-1 with 10.0.1.6"}, {What: "FixedIP", Is: "none"}, notRead},
			Findings: []explain.Finding{ok("The pod is bound to node node-1, and no FixedIP reserves an address for it; whether the pool of the node has one for the pod is unknown")},
		}},
		"has no IP yet": {func(w *world) { w.Pod.Status.PodIPs = nil }, explain.Report{
			Facts:    []explain.Fact{{What: "Pod", Is: "db/mysql-0, Running on node node-1"}, inUse, onNode, notRead},
			Findings: []explain.Finding{ok("The pod is bound to node node-1 and has no IP yet; FixedIP mysql-0 reserves 10.0.1.6 for it")},
			Waits:    true,
		}},
		"runs with another address on another node": {func(w *world) {
			w.Pod.Spec.NodeName, w.Pod.Status.PodIPs, w.Record.Spec.NodeName = "node-2", []corev1.PodIP{{IP: "10.0.2.1"}}, ""
		}, explain.Report{
			Facts: []explain.Fact{{What: "Pod", Is: "db/mysql-0, Running on node node-2 with 10.0.2.1"}, inUse, notRead},
			Findings: []explain.Finding{
				wrong("The pod runs with 10.0.2.1, but its address 10.0.1.6 belongs to a node that is unknown", "kubectl -n db delete pod mysql-0"),
			},
		}},
		"waits": {func(w *world) {
			w.unplaced()
			w.Pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "node node-1 is cordoned"}}
		}, explain.Report{
			Facts: []explain.Fact{{What: "Pod", Is: "db/mysql-0, not placed for 5m"}, inUse, onNode, notRead},
			Findings: []explain.Finding{
				ok("Address 10.0.1.6 of the pod is reserved; previous node: node-1; the state of the node is unknown"),
				ok("Condition PodScheduled of the pod is False: node node-1 is cordoned"),
			},
			Waits: true,
		}},
		"waits for its first address": {func(w *world) { w.unplaced(); w.Record = nil }, explain.Report{
			Facts:    []explain.Fact{{What: "Pod", Is: "db/mysql-0, not placed for 5m"}, {What: "FixedIP", Is: "none"}, notRead},
			Findings: []explain.Finding{ok("The pod has no address yet; the free addresses of the nodes are unknown")},
			Waits:    true,
		}},
		"no object has the name": {func(w *world) { w.deletePod(); w.Record = nil }, explain.Report{
			Facts:    []explain.Fact{{What: "Pod", Is: "db/mysql-0 does not exist"}, {What: "FixedIP", Is: "none"}, notRead},
			Findings: []explain.Finding{wrong("Pod db/mysql-0 does not exist, and no FixedIP names it; the pools are unknown", "check the name and the namespace (-n)")},
		}},
		"the pod is deleted": {func(w *world) { w.deletePod() }, explain.Report{
			Facts:    []explain.Fact{{What: "Pod", Is: "db/mysql-0 does not exist"}, {What: "FixedIP", Is: "10.0.1.6, not reconciled yet, for StatefulSet mysql"}, onNode, notRead},
			Findings: []explain.Finding{ok("Address 10.0.1.6 is reserved for the pod that StatefulSet mysql is about to create")},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := fine()
			c.change(w)
			w.Pools, w.Nodes, w.NotRead = nil, nil, []string{"CiliumNodes (forbidden)", "nodes (forbidden)"}
			got := explain.Explain(w.Inputs)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("report (-want +got): %s", diff)
			}
			if got.HasProblem() != (c.want.Waits || name == "no object has the name" || name == "runs with another address on another node") {
				t.Errorf("HasProblem returns %v, want %v", got.HasProblem(), !got.HasProblem())
			}
		})
	}
}
