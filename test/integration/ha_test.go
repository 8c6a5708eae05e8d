// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/hack/product"
	"fixedip.io/fixedip/hack/witness"
	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// defaultOf returns the default value of a flag of the controller, from --help.
func defaultOf(t *testing.T, flag string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stepTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "race", "fixedip-controller"), "--help")
	help, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^ +(-v, )?--` + flag + `\b.*\(default "?([^")]+)"?\)`).FindSubmatch(help)
	if line == nil {
		t.Fatalf("the help has no default of --%s:\n%s", flag, help)
	}
	return string(line[2])
}

// startAs starts a controller whose only arguments about leader election are args. The controller gets its namespace from
// POD_NAMESPACE, like a program in a pod.
func (e *env) startAs(name string, args ...string) *replica {
	e.t.Helper()
	r := &replica{e: e, name: name, metrics: freePort(e.t)}
	_, err := e.StartProcess(name, "/usr/bin/env", append([]string{
		"POD_NAMESPACE=fixedip-system", filepath.Join(bin, "race", "fixedip-controller"), "--kubeconfig=" + e.Kubeconfig(cluster.Controller), "-v=2",
		fmt.Sprintf("--metrics-bind-address=127.0.0.1:%d", r.metrics), "--health-probe-bind-address=0",
	}, append(args, defaultPool...)...)...)
	e.must(err)
	return r
}

// leads waits until a replica reports in its metrics that it leads with the named Lease, or that it does not.
func (r *replica) leads(id string, yes bool) {
	r.e.t.Helper()
	n := 0
	if yes {
		n = 1
	}
	r.awaitServed(r.metrics, "/metrics", fmt.Sprintf(`leader_election_master_status{name=%q} %d`, id, n))
}

// TestG7HighAvailability checks that one of two replicas leads, with the Lease and the times of the flags. That replica is
// killed during its work. The other replica takes over when the Lease expires, and completes the work (G7).
func TestG7HighAvailability(t *testing.T) {
	t.Parallel()
	const id = "cilium-ipam-leader"
	for flag, want := range map[string]string{
		"enable-leader-election": "true", "leader-election-id": id, "leader-election-lease-duration": "15s",
		"leader-election-renew-deadline": "10s", "leader-election-retry-period": "2s",
	} {
		if got := defaultOf(t, flag); got != want {
			t.Errorf("--%s is %s by default, want %s", flag, got, want)
		}
	}
	e := start(t, options{noScheduler: true})
	e.startNode("node-1")
	e.startNode("node-2")
	first := e.startAs("first", "--enable-leader-election=true")
	first.leads(id, true)
	second := e.startAs("second")
	second.leads(id, false)
	e.startScheduler("scheduler", product.SchedulerOptions{})
	e.create(statefulSet("web", 4), statefulSet("goes", 4))
	before := e.awaitRunning(nil, append(names("web", 4), names("goes", 4)...)...)
	lease := e.lease("fixedip-system", id)
	if got := ptr.Deref(lease.Spec.LeaseDurationSeconds, 0); got != 15 {
		t.Errorf("the duration of the Lease is %d s, want 15", got)
	}

	// The leader is killed before it has completed the following changes.
	fixedIPs := map[string]*v1alpha1.FixedIP{}
	for _, name := range names("web", 4) {
		fixedIPs[name] = e.witness.Record(namespace, name)
	}
	e.delete(statefulSet("goes", 4))
	e.create(statefulSet("comes", 4))
	e.must(e.Process("first").Kill())
	e.deletePods(names("web", 4)...)
	e.startNode("node-3")
	web := e.awaitRunning(before, names("web", 4)...)
	e.sameAddresses(only(before, names("web", 4)...), web)
	second.leads(id, true)
	if now := e.lease("fixedip-system", id); ptr.Deref(now.Spec.LeaseTransitions, 0) != ptr.Deref(lease.Spec.LeaseTransitions, 0)+1 || *now.Spec.HolderIdentity == *lease.Spec.HolderIdentity {
		t.Errorf("the Lease is %+v, want another holder and one more transition than in %+v", now.Spec, lease.Spec)
	}
	comes := e.awaitRunning(nil, names("comes", 4)...)
	e.await("wait for all pods, FixedIPs and entries of StatefulSet goes to be deleted", func(rows []witness.Row) bool { return len(rowsFor(rows, "goes")) == 0 })
	e.must(e.WaitNodeReady(within(t), "node-3"))
	for name, was := range fixedIPs {
		if now := e.witness.Record(namespace, name); now == nil || now.UID != was.UID || now.Spec.IPs[0] != was.Spec.IPs[0] {
			t.Errorf("FixedIP %s is %+v, want the UID and the IP of %+v", name, now, was)
		}
	}

	// The killed replica is the standby after its restart, and leads again when the other replica stops and releases the Lease.
	e.must(e.Process("first").Restart(within(t)))
	first.leads(id, false)
	e.must(e.Process("second").Terminate(within(t)))
	first.leads(id, true)
	e.must(e.Process("first").Terminate(within(t)))

	// A controller can use another Lease in another namespace, with other times.
	e.allowLeases("kube-public", "another")
	other := e.startAs("other", "--leader-election-namespace=kube-public", "--leader-election-id=another",
		"--leader-election-lease-duration=6s", "--leader-election-renew-deadline=4s", "--leader-election-retry-period=1s")
	other.leads("another", true)
	if got := ptr.Deref(e.lease("kube-public", "another").Spec.LeaseDurationSeconds, 0); got != 6 {
		t.Errorf("the duration of the Lease is %d s, want 6", got)
	}
	e.deletePods(names("comes", 4)...)
	e.sameAddresses(comes, e.awaitRunning(comes, names("comes", 4)...))
}

func (e *env) lease(namespace, name string) *coordinationv1.Lease {
	e.t.Helper()
	var lease coordinationv1.Lease
	e.must(e.api.Get(within(e.t), client.ObjectKey{Namespace: namespace, Name: name}, &lease))
	return &lease
}

// allowLeases grants the controller the rights on the Leases with these names, and on Events, in another namespace. An
// administrator who sets --leader-election-namespace has to grant the same rights, and those on the ConfigMap of the cluster
// pools (package poolguard), which the controller writes into that namespace. Without the latter rights, the controller logs
// an error and continues.
func (e *env) allowLeases(namespace string, names ...string) {
	e.t.Helper()
	meta := metav1.ObjectMeta{Namespace: namespace, Name: "fixedip-controller"}
	e.create(&rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"create"}},
		{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: names, Verbs: []string{"get", "update"}},
		{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
	}}, &rbacv1.RoleBinding{
		ObjectMeta: *meta.DeepCopy(),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "fixedip-system", Name: "fixedip-controller"}},
	})
}
