// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/check"
)

// TestCheck checks that kubectl fixedip check finds nothing in a healthy cluster, finds every fault that the test plants
// after it has stopped the controller, and repairs those that need no decision.
func TestCheck(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: []string{"node-1"}, controllerArgs: defaultPool})
	e.provoked = func(string) bool { return true }
	e.bindViewer()
	e.create(statefulSet("web", 1))
	web := e.awaitRunning(nil, "web-0")["web-0"].Address
	e.create(placed("other", "node-1", 1, map[string]string{"app": "other"}))
	other := e.awaitPods("other-0")["other-0"]
	e.checkOutput([]string{"check", "--recheck-after=1s"}, "No problems found.")
	// A running controller would repair some of the faults before check reports them.
	e.must(e.controller.Terminate(within(t)))

	e.agentless("left")
	e.agentless("right")
	e.agentless("bare")
	old := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	e.patchCiliumNode("left", fmt.Sprintf(`{"spec":{"ipam":{"podCIDRs":["10.77.1.0/24"],"pool":{"10.77.1.001":{},"10.77.1.200":{},"10.77.1.5":{"owner":"default/lone-0","resource":"default/StatefulSet/lone"},
		"10.77.1.21":{"owner":"fixedip.io/held"},"10.77.1.9":{"owner":"fixedip.io/cooldown","resource":"pod=default/old-0;since=%s"}}}}}`, old))
	e.patchCiliumNode("left", `{"status":{"ipam":{"used":{"10.77.1.5":{"owner":"default/lone-1"}},"release-ips":{"10.77.1.200":"marked-for-release"}}}}`)
	e.patchCiliumNode("right", `{"spec":{"ipam":{"podCIDRs":["10.77.1.128/25"],"pool":{"10.77.1.200":{}}}}}`)
	e.must(e.ownerEntry("node-1", ".199", "default/gone-0", "default/StatefulSet/gone"))
	e.must(e.ownerEntry("node-1", ".198", "default/other-0", "default/StatefulSet/other"))
	// A user has reserved this address for a pod that does not exist yet. check does not report such an entry as a problem.
	e.must(e.ownerEntry("node-1", ".196", "default/later-0", ""))
	e.must(e.ownerEntry("node-1", web[strings.LastIndex(web, "."):], "default/web-0", "default/StatefulSet"))
	network := strings.TrimSuffix(web, web[strings.LastIndex(web, "."):])
	e.create(
		beforehand("thief", "thief-0", web),
		beforehand("far", "far-0", "10.99.0.1"),
		beforehand("other", "other-0", network+".198"),
		beforehand("lost", "lost-0", network+".197"),
		beforehand("lone", "lone-0", "10.77.1.5"),
		endpointBy("lone-0", "10.77.1.6"),
		&v1alpha1.NodeSubnet{ObjectMeta: metav1.ObjectMeta{Name: "10-78-0-0-24"}, Spec: v1alpha1.NodeSubnetSpec{CIDR: "10.78.0.0/24", NodeName: "gone"}},
	)
	for pod, node := range map[string]string{"lone-0": "left", "lone-1": "right"} {
		e.runByHand(pod, node, "10.77.1.5")
	}

	want := []string{
		"CiliumNode bare: NoSubnet",
		"CiliumEndpoint default/lone-0: WrongEndpoint",
		"CiliumNode left: Malformed", "CiliumNode left: Malformed", "CiliumNode left: OtherUser", "CiliumNode left: OverlappingSubnets",
		"CiliumNode left: SharedEntry", "CiliumNode left: StuckHandshake", "CiliumNode left: StuckRelease", "CiliumNode left: UnknownSubnet",
		"CiliumNode node-1: LeakedEntry", "CiliumNode node-1: Malformed",
		"CiliumNode right: UnknownSubnet",
		"FixedIP default/far-0: MissingSubnet",
		"FixedIP default/lost-0: MissingEntry",
		"FixedIP default/thief-0: OtherOwner",
		"FixedIP default/web-0: SharedReservation",
		"NodeSubnet 10-78-0-0-24: StaleSubnet",
		"Pod default/lone-1: SharedAddress",
		"Pod default/other-0: WrongAddress",
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, e.foundByCheck(viewer)); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
	// Six of the problems can be repaired without a decision. A dry run repairs none.
	repaired := []string{
		"CiliumEndpoint default/lone-0: WrongEndpoint", "CiliumNode left: StuckHandshake", "CiliumNode node-1: LeakedEntry",
		"CiliumNode node-1: Malformed", "NodeSubnet 10-78-0-0-24: StaleSubnet", "Pod default/other-0: WrongAddress",
	}
	if diff := cmp.Diff(want, e.foundByCheck("", "--fix", "--dry-run", "--mismatch-policy=Restart")); diff != "" {
		t.Errorf("problems after a dry run (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, e.foundByCheck(viewer)); diff != "" {
		t.Errorf("problems after a dry run, read again (-want +got):\n%s", diff)
	}
	remaining := slices.DeleteFunc(slices.Clone(want), func(p string) bool { return slices.Contains(repaired, p) })
	if diff := cmp.Diff(remaining, e.foundByCheck("", "--fix", "--mismatch-policy=Restart")); diff != "" {
		t.Errorf("problems that check --fix does not repair (-want +got):\n%s", diff)
	}
	after := e.foundByCheck(viewer)
	for _, p := range repaired {
		if slices.Contains(after, p) {
			t.Errorf("check still reports %q after check --fix has repaired the problem", p)
		}
	}
	if r := e.awaitPods("other-0")["other-0"]; r.UID == other.UID || r.Address != network+".198" {
		t.Errorf("other-0 has the UID %s and runs with %s after the repair, want another UID than %s, and %s", r.UID, r.Address, other.UID, network+".198")
	}
}

// foundByCheck returns the problems that kubectl fixedip check reports to a user, as "object: kind", sorted. If user is
// empty, the command has all rights. foundByCheck fails the test if the exit code is not 1, as when check finds no problem.
func (e *env) foundByCheck(user string, args ...string) []string {
	e.t.Helper()
	out, err := e.kubectlAs(user, append([]string{"check", "--recheck-after=1s", "-o=json"}, args...)...)
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		e.t.Fatalf("check: got the error %v, want exit code 1; output: %s", err, out)
	}
	var problems struct{ Items []check.Problem }
	if err := json.Unmarshal([]byte(out), &problems); err != nil {
		e.t.Fatalf("check: decode the output: %v; output: %s", err, out)
	}
	var found []string
	for _, p := range problems.Items {
		found = append(found, p.Object+": "+string(p.Kind))
	}
	slices.Sort(found)
	return found
}

// patchCiliumNode applies a merge patch to a CiliumNode. A patch that begins with the field status changes the status only.
func (e *env) patchCiliumNode(name, patch string) {
	e.t.Helper()
	cn := &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if strings.HasPrefix(patch, `{"status"`) {
		e.must(e.api.Status().Patch(within(e.t), cn, client.RawPatch(types.MergePatchType, []byte(patch))))
		return
	}
	e.must(e.api.Patch(within(e.t), cn, client.RawPatch(types.MergePatchType, []byte(patch))))
}

// runByHand creates a pod that is bound to a node without a kubelet, and writes the status of a pod that runs with the
// address ip.
func (e *env) runByHand(name, node, ip string) {
	e.t.Helper()
	pod := aPod(name)
	pod.Spec = corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main", Image: "none"}}}
	e.create(pod)
	pod.Status.Phase, pod.Status.PodIP, pod.Status.PodIPs = corev1.PodRunning, ip, []corev1.PodIP{{IP: ip}}
	e.must(e.api.Status().Update(within(e.t), pod))
}
