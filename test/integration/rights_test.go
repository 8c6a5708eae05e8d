// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/product"
	"fixedip.io/fixedip/hack/witness"
	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
)

// usedByOtherTests contains the rights that need not be used in the small cluster of TestRightsAreUsed. Key: the account, then
// the right. Value: the purpose of the right and a test that uses it.
var usedByOtherTests = map[string]map[string]string{
	"fixedip-controller": {
		right("create", "", "pods/eviction", "", ""):                                 "restarting a pod that runs with a wrong address: TestMismatch",
		right("get", "", "persistentvolumeclaims", "", ""):                           "reading the volumes of pods that wait for an orphaned subnet: TestVolumeInAZone",
		right("get", "", "persistentvolumes", "", ""):                                "reading the volumes of pods that wait for an orphaned subnet: TestVolumeInAZone",
		right("get", "", "nodes", "", ""):                                            "checking that a node was deleted before its addresses are released: TestHoldAndFree",
		right("get", "cilium.io", "ciliumendpoints", "", ""):                         "reading a CiliumEndpoint that seems to be stale or missing: TestG6CEPKeeper",
		right("patch", "cilium.io", "ciliumendpoints", "", ""):                       "correcting the owner reference or removing the finalizers of a CiliumEndpoint: TestG6CEPKeeper",
		right("delete", "cilium.io", "ciliumendpoints", "", ""):                      "deleting a CiliumEndpoint that has no pod or does not describe its pod: TestG6CEPKeeper",
		right("patch", "cilium.io", "ciliumnodes/status", "", ""):                    "asking an agent to acknowledge a withdrawal: TestDynamicEntryBecomesReserved",
		right("get", "fixedip.io", "nodesubnets", "", ""):                            "reading a NodeSubnet that was written just before a claim: any test in which nodes join at the same time",
		right("update", "fixedip.io", "nodesubnets", "", ""):                         "assigning an orphaned subnet to the node that inherits it: TestNodeReplaced",
		right("delete", "fixedip.io", "nodesubnets", "", ""):                         "deleting the NodeSubnet of a deleted node: TestHoldAndFree",
		right("update", "", "configmaps", "fixedip-cluster-pools", "fixedip-system"): "undoing a change of the CIDRs that users may reserve: TestClusterPoolsAreGuarded",
		right("patch", "events.k8s.io", "events", "", ""):                            "counting a repeated event: any test in which an event repeats",
		right("create", "authentication.k8s.io", "tokenreviews", "", ""):             "authenticating the clients that ask for metrics: TestSecureMetrics",
		right("create", "authorization.k8s.io", "subjectaccessreviews", "", ""):      "checking that a client may read metrics: TestSecureMetrics",
	},
	"fixedip-scheduler": {
		right("get", "", "configmaps", "cilium-config", "kube-system"): "reading the routing mode of Cilium: TestSettingsFollowCilium",
		right("get", "cilium.io", "ciliumnodes", "", ""):               "reading a pool from the API server after a conflict and for a migration: TestMigrate",
	},
}

// TestRightsAreUsed checks that each right of the roles is used in a small cluster, according to its audit log, or is in
// usedByOtherTests. It also checks that the roles grant all rights in usedByOtherTests, and that the API server refuses no
// request of the programs in that cluster. It does not check that the tests that usedByOtherTests names use the rights.
func TestRightsAreUsed(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "audit.log")
	e := start(t, options{noScheduler: true, controlPlaneArgs: []string{"--audit-log=" + log}})
	// If the API server streamed the initial lists of watches, the controller would not use its rights to list objects.
	var err error
	e.controller, err = product.StartController(e.Cluster, "controller", e.program("fixedip-controller"), product.ControllerOptions{
		Lease: testLease, Args: append([]string{"--workload-kind=Deployment.apps=Slot", "--resync-period=5s"}, defaultPool...),
		Env: []string{"KUBE_FEATURE_WatchListClient=false"},
	})
	e.must(err)
	e.startScheduler("scheduler", product.SchedulerOptions{Workloads: "[{apiGroup: apps, kind: Deployment, identity: Slot}]"})
	e.startNode("node-1")
	e.must(e.WaitNodeReady(e.whileAllRun(), "node-1"))

	shop := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "shop"}}
	template := statefulSet("shop", 1, onTemplate(identity.AnnotationEnabled, "true")).Spec.Template
	shop.Spec = appsv1.DeploymentSpec{Replicas: ptr.To[int32](1), Selector: &metav1.LabelSelector{MatchLabels: template.Labels}, Template: template}
	e.create(shop, statefulSet("web", 2, onTemplate(identity.AnnotationStickyMAC, "true"), annotatedWith(identity.AnnotationWhenScaled, "Delete")))
	before := e.awaitRunning(nil, names("web", 2)...)
	e.eventually("the slot of the Deployment to be recorded", func() bool { return len(e.records("shop")) == 1 })
	e.deletePods("web-0")
	e.sameAddresses(before, e.awaitRunning(map[string]witness.Row{"web-0": before["web-0"]}, names("web", 2)...))
	e.scale("web", 1)
	e.eventually("the FixedIP of web-1 to be deleted", func() bool { return e.witness.Record(namespace, "web-1") == nil })
	deleted := e.witness.Record(namespace, "web-0")
	e.delete(&v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web-0"}})
	e.delete(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web-0"}})
	e.eventually("the former FixedIP of web-0 to be deleted", func() bool {
		now := e.witness.Record(namespace, "web-0")
		return now == nil || now.UID != deleted.UID
	})
	e.delete(shop, client.PropagationPolicy(metav1.DeletePropagationBackground))
	e.eventually("the FixedIP of the slot to be deleted", func() bool { return len(e.records("shop")) == 0 })

	for account, file := range map[string]string{"fixedip-controller": "controller-rbac.yaml", "fixedip-scheduler": "scheduler-rbac.yaml"} {
		used, refused := e.usedRights(log, account)
		for _, text := range refused {
			t.Errorf("the API server refused account %s the request %q", account, text)
		}
		for _, text := range granted(t, file) {
			_, byOtherTest := usedByOtherTests[account][text]
			if !used[text] && !byOtherTest {
				t.Errorf("account %s has the right %q, which was not used and is not in usedByOtherTests", account, text)
			}
		}
		for text, test := range usedByOtherTests[account] {
			if !slices.Contains(granted(t, file), text) {
				t.Errorf("account %s does not have the right %q, which usedByOtherTests has for %q", account, text, test)
			}
		}
	}
}

// usedRights returns the rights that an account used according to the audit log, and the rights of its refused requests.
// used contains each right three times: for all objects, for the namespace, and for the object.
func (e *env) usedRights(log, account string) (used map[string]bool, refused []string) {
	e.t.Helper()
	used = map[string]bool{}
	e.audited(log, account, func(event auditv1.Event, resource string) {
		o := event.ObjectRef
		if event.Annotations["authorization.k8s.io/decision"] == "forbid" {
			refused = append(refused, right(event.Verb, o.APIGroup, resource, o.Name, o.Namespace))
			return
		}
		used[right(event.Verb, o.APIGroup, resource, "", "")] = true
		used[right(event.Verb, o.APIGroup, resource, "", o.Namespace)] = true
		used[right(event.Verb, o.APIGroup, resource, o.Name, o.Namespace)] = true
	})
	return used, refused
}

// audited calls seen for each event in the audit log that an account caused and that is about objects. An empty account
// means all users. resource includes the subresource. A last line that the API server is still writing is left out.
func (e *env) audited(log, account string, seen func(event auditv1.Event, resource string)) {
	e.t.Helper()
	file, err := os.Open(log)
	e.must(err)
	defer file.Close()
	lines := bufio.NewReader(file)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return
		}
		e.must(err)
		var event auditv1.Event
		e.must(json.Unmarshal(line, &event))
		o := event.ObjectRef
		if o == nil || account != "" && event.User.Username != serviceaccount.MakeUsername(system, account) {
			continue
		}
		resource := o.Resource
		if o.Subresource != "" {
			resource += "/" + o.Subresource
		}
		seen(event, resource)
	}
}
