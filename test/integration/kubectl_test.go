package integration

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/hack/witness"
)

// viewer is a person with the rights of manifests/viewer-rbac.yaml, and those of the role view that
// the plugin needs: in a cluster with all controllers that role has them.
const viewer = "alice"

func (e *env) bindViewer() {
	e.t.Helper()
	e.must(e.Apply(within(e.t), filepath.Join("..", "..", "manifests", "viewer-rbac.yaml")))
	view := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "view-of-viewer"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list"}},
		{APIGroups: []string{"apps"}, Resources: []string{"statefulsets"}, Verbs: []string{"get", "list"}},
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

// kubectl runs the plugin as the viewer and returns what it prints.
func (e *env) kubectl(args ...string) (string, error) {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(e.t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "race", "kubectl-fixedip"), append(args, "--kubeconfig="+e.Kubeconfig(cluster.Admin), "--as="+viewer, "--cache-dir="+e.t.TempDir())...)
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return string(out) + string(exit.Stderr), err
	}
	return string(out), err
}

// says tells that each of the texts is in what the plugin prints.
func (e *env) says(args []string, texts ...string) {
	e.t.Helper()
	out, err := e.kubectl(args...)
	e.must(err)
	// Columns are padded.
	plain := strings.Join(strings.Fields(out), " ")
	for _, text := range texts {
		if !strings.Contains(plain, text) {
			e.t.Errorf("kubectl fixedip %s does not say %q but\n%s", strings.Join(args, " "), text, out)
		}
	}
}

// The plugin shows what stands, and says in one command why a pod waits. (G16)
func TestG16KubectlPlugin(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: []string{"node-1"}, controllerArgs: defaultPool})
	e.bindViewer()
	e.says([]string{"list"}, "No pod has a fixed address here.")
	e.create(statefulSet("web", 2))
	before := e.awaitRunning(nil, names("web", 2)...)
	web0 := before["web-0"].Address
	e.says([]string{"list", "-A"}, "NAMESPACE NAME ADDRESSES NODE PHASE POD AGE", "default web-0 "+web0+" node-1 InUse Running", "default web-1 ")
	e.says([]string{"explain", "web-0"}, "Pod: default/web-0, Running on node node-1 with "+web0, "- It runs with its fixed address "+web0+".")
	e.says([]string{"nodes"}, "NODE FAMILY SUBNETS ROOM FIXED FREE USED RESTING STATE", "node-1 IPv4 10.240.", "ready")

	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
	e.must(e.api.Patch(within(t), node, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"unschedulable":true}}`))))
	e.deletePods("web-0")
	e.await("wait for web-0 to be made anew", func(rows []witness.Row) bool {
		return rows[0].UID != before["web-0"].UID && rows[0].UID != "" && rows[0].Node == ""
	})
	e.podMessage("web-0", "cordoned")
	e.says([]string{"explain", "web-0"}, "! Its address "+web0+" belongs to node node-1, which is cordoned. what helps: kubectl uncordon node-1; ", "- fixedip-scheduler said: 0/1 nodes are available")
	e.says([]string{"nodes"}, "cordoned")

	e.says([]string{"explain", "nobody"}, "! There is no pod default/nobody, no FixedIP of its name, and no pool has an entry for it.")
	if out, err := e.kubectl("explain"); err == nil || !strings.Contains(out, "name one pod, or one that was") {
		t.Errorf("explain without a pod: %v, %s", err, out)
	}
}
