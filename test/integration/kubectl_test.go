// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/hack/witness"
	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/reservation"
)

// viewer is a user with the ClusterRole fixedip-viewer of manifests/user-rbac.yaml, and with rights to read pods, StatefulSets
// and PodDisruptionBudgets.
const viewer = "alice"

func (e *env) bindViewer() {
	e.t.Helper()
	e.must(e.Apply(within(e.t), filepath.Join("..", "..", "manifests", "user-rbac.yaml")))
	view := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "view-of-viewer"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list"}},
		{APIGroups: []string{"apps"}, Resources: []string{"statefulsets"}, Verbs: []string{"get", "list"}},
		{APIGroups: []string{"policy"}, Resources: []string{"poddisruptionbudgets"}, Verbs: []string{"get", "list"}},
	}}
	e.create(view)
	for _, role := range []string{"fixedip-viewer", view.Name} {
		e.create(&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: role},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: viewer}},
		})
	}
}

// kubectl runs the kubectl plugin as the viewer and returns its output.
func (e *env) kubectl(args ...string) (string, error) {
	e.t.Helper()
	return e.kubectlAs(viewer, args...)
}

// kubectlAs runs the kubectl plugin as a user and returns the text of stdout, or that of stderr if the plugin fails and
// stdout is empty. If user is empty, the plugin has all rights.
func (e *env) kubectlAs(user string, args ...string) (string, error) {
	e.t.Helper()
	if user != "" {
		args = append(args, "--as="+user)
	}
	ctx, cancel := context.WithTimeout(e.t.Context(), stepTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "kubectl-fixedip"), append(args, "--kubeconfig="+e.Kubeconfig(cluster.Admin), "--cache-dir="+e.t.TempDir())...)
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && len(out) == 0 {
		return string(exit.Stderr), err
	}
	return string(out), err
}

// checkOutput runs the plugin as the viewer. It checks that the plugin does not fail and that its output contains each text.
// Exit code 1 is no failure. It means that the plugin has found a problem. Sequences of white space in the output count as one
// space.
func (e *env) checkOutput(args []string, texts ...string) {
	e.t.Helper()
	out, err := e.kubectl(args...)
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		e.must(err)
	}
	// The columns of tables are padded.
	plain := strings.Join(strings.Fields(out), " ")
	for _, text := range texts {
		if !strings.Contains(plain, text) {
			e.t.Errorf("the output of kubectl fixedip %s does not contain %q:\n%s", strings.Join(args, " "), text, out)
		}
	}
}

// TestG16KubectlPlugin checks that the plugin shows the state of fixed addresses and nodes, and explains why a pod waits. For
// each of the four cases of the guide, the plugin reports the cause and what helps (G16).
func TestG16KubectlPlugin(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: []string{"node-1"}, controllerArgs: defaultPool})
	e.bindViewer()
	e.checkOutput([]string{"list"}, "No fixed addresses found.")
	e.create(statefulSet("web", 2))
	before := e.awaitRunning(nil, names("web", 2)...)
	web0 := before["web-0"].Address
	e.checkOutput([]string{"list", "-A"}, "NAMESPACE NAME IP NODE READY REASON POD STATE AGE", "default web-0 "+web0+" node-1 True InUse web-0 Running", "default web-1 ")
	e.checkOutput([]string{"get", "-o", "name"}, "fixedip.fixedip.io/web-0 fixedip.fixedip.io/web-1")
	e.checkOutput([]string{"get", "web-0", "--workload=StatefulSet/web", "--node=node-1", "-o", "json"}, `{ "items": [ { "namespace": "default", "name": "web-0", "ips": [ "`+web0+`" ], "node": "node-1", "ready": "True"`)
	e.checkOutput([]string{"explain", "web-0"}, "Pod: default/web-0, Running on node node-1 with "+web0, "- The pod runs with its fixed address "+web0+".")
	e.checkOutput([]string{"nodes"}, "NODE FAMILY SUBNETS USE% AVAILABLE FIXED FREE USED COOLDOWN STATE", "node-1 IPv4 10.240.", "ready")

	e.checkOutput([]string{"ip", web0}, "Address: "+web0, "Entry: node node-1: owned by default/web-0 (StatefulSet web)", "Subnet: 10.240.", "FixedIP: default/web-0 for pod web-0, created ", "Pod: default/web-0 on node node-1, started ")
	e.checkOutput([]string{"ip", "192.0.2.9"}, "Subnet: none", "Not read: events (forbidden)", "- No object that was read has 192.0.2.9.")
	if out, err := e.kubectl("ip", "web-0"); err == nil || !strings.Contains(out, "web-0") {
		t.Errorf("ip of a text that is no address: got the error %v and the output %s, want an error that names web-0", err, out)
	}

	all := intstr.FromString("100%")
	e.create(&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}, Spec: policyv1.PodDisruptionBudgetSpec{
		MinAvailable: &all, Selector: &metav1.LabelSelector{MatchLabels: statefulSet("web", 1).Spec.Template.Labels},
	}})
	e.checkOutput([]string{"drain-check", "node-1"}, "NAMESPACE NAME ADDRESSES POLICY BUDGETS WHEN EVICTED", "default web-0 "+web0+" Wait default/web waits until the node is uncordoned",
		"! The drain stops at PodDisruptionBudget default/web (disruptions allowed now: 0); these pods stay Pending and count as disrupted until the node is uncordoned or, if it is deleted, until another node can run them (see subnets.orphanedPolicy): default/web-0",
		"what helps: set the annotation fixedip.io/failover on the workload to Reassign")
	if out, err := e.kubectl("drain-check", "node-9"); err == nil || !strings.Contains(out, `node "node-9" does not exist`) {
		t.Errorf("drain-check of a node that does not exist: got the error %v and the output %s, want an error that names node-9", err, out)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
	e.must(e.api.Patch(within(t), node, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"unschedulable":true}}`))))
	e.deletePods("web-0")
	e.await("wait for web-0 to be created again", func(rows []witness.Row) bool {
		return rows[0].UID != before["web-0"].UID && rows[0].UID != "" && rows[0].Node == ""
	})
	e.podMessage("web-0", "cordoned")
	e.checkOutput([]string{"explain", "web-0"}, "! Address "+web0+" of the pod belongs to node node-1, which is cordoned. what helps: kubectl uncordon node-1; ", "- Condition PodScheduled of the pod is False: 0/1 nodes are available")
	e.checkOutput([]string{"nodes"}, "cordoned")

	e.checkOutput([]string{"explain", "absent"}, "! Pod default/absent does not exist, and no FixedIP and no owned pool entry names it.")
	if out, err := e.kubectl("explain"); err == nil || !strings.Contains(out, "name exactly one pod; the pod may already be deleted") {
		t.Errorf("explain without a pod: got the error %v and the output %s, want an error that asks for one pod", err, out)
	}

	// A pod has no fixed address, because no selector matches the pod, or because the pod waits for another scheduler.
	waits := placed("waits", "", 1, map[string]string{"app": "waits"})
	e.create(placed("other", "node-1", 1, map[string]string{"app": "other"}), waits)
	e.awaitPods("other-0")
	e.checkOutput([]string{"explain", "other-0"}, "! The address of the pod is not fixed: its schedulerName is default-scheduler, and the controller has not adopted the address. "+
		`what helps: set schedulerName: fixedip-scheduler in the pod template; or let the controller adopt the address: set the annotation fixedip.io/enabled: "true" or a label that adoption.podSelector selects`)
	e.await("wait for pod waits-0 to exist", func(rows []witness.Row) bool { return e.witness.Pod(namespace, "waits-0") != nil })
	e.checkOutput([]string{"explain", "waits-0"}, "! The pod waits for default-scheduler, which is not among the known profiles of fixedip-scheduler (fixedip-scheduler). what helps: set schedulerName: fixedip-scheduler in the pod template")

	// An address is not released, because its StatefulSet exists, or no controller is the leader.
	e.scale("web", 1)
	e.awaitRecord("web-1", func(f *v1alpha1.FixedIP) bool { return reservation.StateOf(f) == reservation.Reserved })
	e.checkOutput([]string{"explain", "web-1"}, "- Address "+before["web-1"].Address+" is reserved although StatefulSet web has no replica with the name of the pod: whenScaled is Retain. what helps: kubectl -n default delete fixedip web-1 releases the address")
	e.must(e.controller.Terminate(within(t)))
	e.checkOutput([]string{"explain", "web-1"}, "! No fixedip-controller holds Lease fixedip-system/cilium-ipam-leader: addresses are neither recorded nor released. what helps: check the pods of fixedip-controller")

	// A CiliumEndpoint is stale.
	stuck := endpointBy("web-1", "192.0.2.7")
	stuck.Finalizers = []string{"example.com/hold"}
	e.create(stuck)
	e.checkOutput([]string{"explain", "web-1"}, "! CiliumEndpoint default/web-1 still exists, although its pod does not;", "and the previous pod no longer runs: kubectl -n default delete ciliumendpoint web-1")
	e.delete(stuck)
	e.checkOutput([]string{"explain", "web-1"}, "! CiliumEndpoint default/web-1 of a previous pod has been in deletion for ",
		`what helps: if the previous pod no longer runs: kubectl -n default patch ciliumendpoint web-1 --type=merge -p '{"metadata":{"finalizers":[]}}'`)

	// Two nodes have the same subnet.
	e.create(&ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "twin"}, Spec: ciliumv2.NodeSpec{IPAM: ipamtypes.IPAMSpec{PodCIDRs: e.subnetsOf("node-1", 1)}}})
	e.checkOutput([]string{"nodes"}, "subnets overlap those of twin", "subnets overlap those of node-1")
	e.checkOutput([]string{"explain", "web-0"}, "! The subnets of node node-1 overlap those of node twin; no address in them is claimed. what helps: remove the subnet from spec.ipam.podCIDRs of one of the two CiliumNodes")
}
