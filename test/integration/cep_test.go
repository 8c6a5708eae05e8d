// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"testing"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// awaitEndpoint waits until wanted returns true for the CiliumEndpoint of a pod, and returns that CiliumEndpoint. The
// argument of wanted is nil if the CiliumEndpoint does not exist.
func (e *env) awaitEndpoint(what, name string, wanted func(*ciliumv2.CiliumEndpoint) bool) *ciliumv2.CiliumEndpoint {
	e.t.Helper()
	var cep *ciliumv2.CiliumEndpoint
	err := e.pollWhileAllRun(100*time.Millisecond, func(ctx context.Context) (bool, error) {
		cep = &ciliumv2.CiliumEndpoint{}
		switch err := e.api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, cep); {
		case apierrors.IsNotFound(err):
			cep = nil
		case err != nil:
			return false, err
		}
		return wanted(cep), nil
	})
	if err != nil {
		e.t.Fatalf("wait for the CiliumEndpoint of %s %s: %v; last: %+v", name, what, err, cep)
	}
	return cep
}

// ownEndpoint waits until a pod has its own CiliumEndpoint, with the address of the pod and another UID than before, and
// returns the CiliumEndpoint.
func (e *env) ownEndpoint(name string, before types.UID) *ciliumv2.CiliumEndpoint {
	e.t.Helper()
	return e.awaitEndpoint("to belong to the pod", name, func(cep *ciliumv2.CiliumEndpoint) bool {
		p := e.witness.Pod(namespace, name)
		return cep != nil && p != nil && cep.UID != before && cep.DeletionTimestamp == nil && len(cep.OwnerReferences) == 1 &&
			cep.OwnerReferences[0].UID == p.UID && endpointAddress(cep) == p.Status.PodIP && p.Status.PodIP != ""
	})
}

func endpointAddress(cep *ciliumv2.CiliumEndpoint) string {
	if cep.Status.Networking == nil || len(cep.Status.Networking.Addressing) != 1 {
		return ""
	}
	return cep.Status.Networking.Addressing[0].IPV4
}

func endpointBy(name, ip string, owners ...metav1.OwnerReference) *ciliumv2.CiliumEndpoint {
	return &ciliumv2.CiliumEndpoint{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, OwnerReferences: owners},
		Status:     ciliumv2.EndpointStatus{Networking: &ciliumv2.EndpointNetworking{Addressing: ciliumv2.AddressPairList{{IPV4: ip}}}},
	}
}

// keepCollectorFrom prevents the garbage collector from deleting CiliumEndpoints with this name. The API server refuses such
// requests of kube-controller-manager.
func (e *env) keepCollectorFrom(name string) {
	e.t.Helper()
	meta := metav1.ObjectMeta{Name: "keep-collector-from-" + name}
	e.create(&admissionv1.ValidatingAdmissionPolicy{ObjectMeta: meta, Spec: admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
			RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Delete},
				Rule:       admissionv1.Rule{APIGroups: []string{ciliumv2.CustomResourceDefinitionGroup}, APIVersions: []string{"*"}, Resources: []string{"ciliumendpoints"}},
			},
		}}},
		Validations: []admissionv1.Validation{{
			Expression: fmt.Sprintf("request.name != %q || request.userInfo.username != %q", name, user.KubeControllerManager),
		}},
	}}, &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: meta, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: meta.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
	}})
}

// TestG6CEPKeeper checks that a pod gets its own CiliumEndpoint again if the CiliumEndpoint is missing, stuck in
// deletion, or has a wrong address or owner. If the agent does not create missing CiliumEndpoints, the controller restarts
// a pod with a fixed address, and writes only an event for a pod without one (G6).
func TestG6CEPKeeper(t *testing.T) {
	t.Parallel()
	if got := defaultOf(t, "cep-termination-timeout"); got != "30m0s" {
		t.Errorf("--cep-termination-timeout is %s by default, want 30m0s", got)
	}
	port := freePort(t)
	e := startOn(t, options{controllerArgs: append([]string{
		fmt.Sprintf("--metrics-bind-address=127.0.0.1:%d", port), "--cep-grace-period=10s", "--cep-termination-timeout=5s", "--mismatch-grace-period=2s",
	}, defaultPool...)}, map[string][]string{"node-1": {"--endpoint-interval=1s"}, "node-2": {"--old-agent"}})
	onNode := func(name, node string) client.Object {
		s := statefulSet(name, 1)
		s.Spec.Template.Spec.NodeSelector = map[string]string{"kubernetes.io/hostname": node}
		return s
	}
	young := []string{"missing-0", "stuck-0", "misaddressed-0", "misowned-0", "stale-0"}
	for _, name := range young {
		e.create(onNode(name[:len(name)-2], "node-1"))
	}
	// The CiliumEndpoint of witness-0 stays. The controller evicts no pod of a node that no CiliumEndpoint names, because the
	// agent there may be configured to create no CiliumEndpoints.
	e.create(onNode("old", "node-2"), onNode("witness", "node-2"))
	plain := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "plain"}, Spec: corev1.PodSpec{
		NodeName: "node-2", Containers: []corev1.Container{{Name: "main", Image: "none"}},
	}}
	e.create(plain)
	before := e.awaitRunning(nil, append(young, "old-0", "witness-0")...)
	for name := range before {
		e.ownEndpoint(name, "")
	}
	e.ownEndpoint("plain", "")
	removed := func(cause string) {
		e.awaitMetric(port, "fixedip_ciliumendpoints_removed_total", map[string]string{"cause": cause}, func(v float64) bool { return v > 0 })
	}

	// A CiliumEndpoint is missing. The new agent creates the CiliumEndpoint again, and the old agent does not.
	first := e.ownEndpoint("missing-0", "")
	e.delete(first)
	e.ownEndpoint("missing-0", first.UID)
	old, lone := e.ownEndpoint("old-0", ""), e.ownEndpoint("plain", "")
	e.delete(old)
	e.delete(lone)
	e.awaitEventOn("Pod", "plain", "NoCiliumEndpoint", "agents before v1.18.6 do not create a deleted CiliumEndpoint again")
	e.awaitCondition("old-0", "AsReserved", metav1.ConditionTrue, "AsReserved", "")
	e.awaitEventOn("Pod", "old-0", "NoCiliumEndpoint", "other nodes may not reach it")
	e.ownEndpoint("old-0", old.UID)
	if after := e.awaitRunning(nil, "old-0")["old-0"]; after.UID == before["old-0"].UID || after.Address != before["old-0"].Address {
		t.Errorf("pod old-0 is %+v, want another pod with the address of %+v", after, before["old-0"])
	}

	// A finalizer holds a terminating CiliumEndpoint.
	stuck := e.ownEndpoint("stuck-0", "")
	e.must(e.api.Patch(within(t), stuck, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":["example.com/hold"]}}`))))
	e.delete(stuck)
	e.ownEndpoint("stuck-0", stuck.UID)
	removed("Stuck")

	// Another program has created the CiliumEndpoint, and the agent refuses it.
	other := e.ownEndpoint("misaddressed-0", "")
	e.delete(other)
	e.create(endpointBy("misaddressed-0", "192.0.2.7"))
	e.ownEndpoint("misaddressed-0", other.UID)
	removed("MisAddressed")

	// The CiliumEndpoint has no pod.
	e.create(endpointBy("podless-0", "192.0.2.8"))
	e.awaitEndpoint("to be removed", "podless-0", func(cep *ciliumv2.CiliumEndpoint) bool { return cep == nil })
	removed("Podless")

	// The CiliumEndpoint belongs to a former pod. The garbage collector may delete it first.
	former := metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "stale-0", UID: "11111111-2222-3333-4444-555555555555"}
	stale := e.ownEndpoint("stale-0", "")
	e.delete(stale)
	e.create(endpointBy("stale-0", "192.0.2.9", former))
	e.ownEndpoint("stale-0", stale.UID)

	// Only the owner reference is wrong. The garbage collector deletes such a CiliumEndpoint, too. On a busy machine it may do
	// so before the controller corrects the reference. So the API server refuses deletions by the garbage collector.
	former.Name = "misowned-0"
	e.keepCollectorFrom("misowned-0")
	e.eventually("CiliumEndpoint misowned-0 to get its owner reference back without being replaced", func() bool {
		mis := e.ownEndpoint("misowned-0", "")
		mine := mis.DeepCopy()
		mis.OwnerReferences = []metav1.OwnerReference{former}
		err := e.api.Patch(within(t), mis, client.MergeFrom(mine))
		if apierrors.IsNotFound(err) {
			return false
		}
		e.must(err)
		return e.ownEndpoint("misowned-0", "").UID == mine.UID
	})
	e.awaitMetric(port, "fixedip_ciliumendpoint_ownerref_fixes_total", nil, func(v float64) bool { return v > 0 })

	for name, r := range e.awaitRunning(nil, append(young, "witness-0")...) {
		if r.UID != before[name].UID {
			t.Errorf("pod %s was replaced, want the same UID", name)
		}
	}
	if p := e.witness.Pod(namespace, "plain"); p == nil || p.UID != plain.UID {
		t.Error("pod plain, which has no fixed address, was deleted or replaced")
	}
}
