// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"path/filepath"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/witness"
	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/address"
)

// editorOfDefault creates a user who has the roles fixedip-view and fixedip-edit in the namespace of the tests. The user may
// also read the pods, events, StatefulSets and PodDisruptionBudgets of that namespace, as with the role view of Kubernetes.
// The function returns the name of the user.
func (e *env) editorOfDefault() string {
	e.t.Helper()
	const user = "editor"
	e.create(&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "view"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods", "events"}, Verbs: []string{"get", "list"}},
		{APIGroups: []string{"apps"}, Resources: []string{"statefulsets"}, Verbs: []string{"get", "list"}},
		{APIGroups: []string{"policy"}, Resources: []string{"poddisruptionbudgets"}, Verbs: []string{"get", "list"}},
	}})
	for name, kind := range map[string]string{"view": "Role", "fixedip-view": "ClusterRole", "fixedip-edit": "ClusterRole"} {
		e.create(&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
		})
	}
	return user
}

// TestKubectlChanges checks the commands that change addresses: a user who has rights only in one namespace reserves an
// address before its pod exists; the address moves to another node by the steps that move prints; after release the pod gets
// another address; move names the successor of a subnet; and adopt previews which pods keep their addresses.
func TestKubectlChanges(t *testing.T) {
	t.Parallel()
	nodes := []string{"node-1", "node-2"}
	e := start(t, options{nodes: nodes, controllerArgs: defaultPool, movable: true})
	e.must(e.Apply(within(t), filepath.Join("..", "..", "manifests", "user-rbac.yaml")))
	editor := e.editorOfDefault()
	subnet := e.subnetsOf("node-1", 1)[0]
	ip := subnet[:strings.LastIndex(subnet, ".")] + ".200"

	e.exits(editor, 0, []string{"reserve", "web-0", "--ip=" + ip, "--dry-run"}, "FixedIP default/web-0 not created (dry run): it would reserve "+ip+" for pod web-0 of StatefulSet web.")
	e.exits(editor, 0, []string{"reserve", "web-0", "--ip=" + ip}, "FixedIP default/web-0 created: it reserves "+ip+" for pod web-0 of StatefulSet web.", "CiliumNodes (forbidden)")
	e.exits(editor, 1, []string{"reserve", "other-0", "--ip=" + ip})
	e.create(statefulSet("web", 1))
	before := e.awaitRunning(nil, "web-0")
	if got := before["web-0"]; got.Address != ip || got.Node != "node-1" {
		t.Fatalf("web-0 runs with %s on %s, want %s on node-1", got.Address, got.Node, ip)
	}
	e.exits(editor, 0, []string{"explain", "web-0"}, "The pod runs with its fixed address "+ip, "CiliumNodes (forbidden), nodes (forbidden)")
	e.exits(editor, 0, []string{"ip", ip}, "FixedIP: default/web-0 for pod web-0", "Pod: default/web-0 on node node-1", "CiliumNodes (forbidden)")

	e.exits("", 2, []string{"move", "web-0", "--to=node-2"})
	e.exits("", 0, []string{"move", "web-0", "--to=node-2", "--yes"}, "Next steps: kubectl cordon node-1 kubectl -n default delete pod web-0")
	e.awaitRecord("web-0", func(f *v1alpha1.FixedIP) bool { return f.Spec.Failover == v1alpha1.Migrate })
	e.cordonOthers(nodes, "node-2")
	e.deletePods("web-0")
	moved := e.awaitRunning(before, "web-0")
	e.checkMoved(before["web-0"], moved["web-0"])
	e.cordonOthers(nodes, "")

	e.exits("", 2, []string{"release", "web-0"})
	e.exits("", 0, []string{"release", "web-0", "--dry-run", "--restart-pod"}, "Pod default/web-0 is deleted. When it has stopped, "+ip+" is released.", "Dry run: nothing was changed.")
	e.exits("", 0, []string{"release", "web-0", "--yes", "--restart-pod"}, "FixedIP default/web-0 deleted", "Pod default/web-0 deleted")
	e.await("wait for web-0 to run with another address", func(rows []witness.Row) bool {
		pod := e.witness.Pod(namespace, "web-0")
		return pod != nil && string(pod.UID) != string(moved["web-0"].UID) && pod.Status.PodIP != "" && pod.Status.PodIP != ip
	})

	cidr, err := address.ParseSubnet(subnet)
	e.must(err)
	e.exits("", 0, []string{"move", "subnet/" + subnet, "--to=node-2", "--yes"}, "the successor is node node-2")
	ns := &v1alpha1.NodeSubnet{}
	e.must(e.api.Get(within(t), client.ObjectKey{Name: address.SubnetName(cidr)}, ns))
	if ns.Spec.Successor != "node-2" {
		t.Errorf("the successor is %q, want node-2", ns.Spec.Successor)
	}

	e.create(placed("other", "node-1", 1, map[string]string{"app": "other"}))
	other := e.awaitPods("other-0")["other-0"]
	e.exits("", 0, []string{"adopt", "--preview", "--selector=app=other"}, "default other-0 node-1 "+other.Address+" Adopted -", "restarts: 0", "pods that keep their current addresses as fixed addresses: 1")
}
