// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/cluster"
	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/request"
	"fixedip.io/fixedip/ipam/core/reservation"
)

// tenantSpace is the namespace in which a tenant may do everything with FixedIPs, StatefulSets and pods.
const tenantSpace = "tenant"

// asTenant creates tenantSpace and returns a client that has only the rights of the tenant, who may write even the status
// of FixedIPs.
func (e *env) asTenant() client.Client {
	e.t.Helper()
	all := []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}
	e.create(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: tenantSpace}},
		&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: tenantSpace, Name: "tenant"}, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"fixedip.io"}, Resources: []string{"fixedips", "fixedips/status"}, Verbs: all},
			{APIGroups: []string{"apps"}, Resources: []string{"statefulsets"}, Verbs: all},
			{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: all},
		}},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: tenantSpace, Name: "tenant"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "tenant"},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "tenant"}},
		})
	return e.asUser("tenant")
}

// asUser returns a client with the rights of the user.
func (e *env) asUser(name string) client.Client {
	e.t.Helper()
	cfg, err := e.RESTConfig(cluster.Admin)
	e.must(err)
	cfg.Impersonate.UserName = name
	user, err := client.New(cfg, client.Options{Scheme: e.api.Scheme()})
	e.must(err)
	return user
}

// asEditor returns a client whose user has the roles fixedip-view and fixedip-edit of manifests/user-rbac.yaml in
// tenantSpace. The control plane of the test has no controller that adds their rights to the roles view and edit.
func (e *env) asEditor() client.Client {
	e.t.Helper()
	e.must(e.Apply(within(e.t), filepath.Join("..", "..", "manifests", "user-rbac.yaml")))
	for _, role := range []string{"fixedip-view", "fixedip-edit"} {
		e.create(&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: tenantSpace, Name: role},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "editor"}},
		})
	}
	return e.asUser("editor")
}

func tenantFixedIP(name, ip string) *v1alpha1.FixedIP {
	f := beforehand(strings.TrimSuffix(name, "-0"), name, ip)
	f.Namespace = tenantSpace
	return f
}

// TestTenant checks that a tenant with all rights on the FixedIPs of one namespace cannot see, take or release
// addresses of another namespace. The tenant creates FixedIPs that name such addresses and pods that request them, and
// then deletes the FixedIPs. The scheduler and the controller refuse the addresses, because expressions of admission
// policies cannot read other objects. The tenant cannot have an address outside of the cluster pools either.
func TestTenant(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: []string{"node-1"}, controllerArgs: defaultPool})
	// The FixedIPs of the tenant make the witness report two FixedIPs with one address.
	e.provoked = func(violation string) bool { return strings.Contains(violation, tenantSpace+"/") }
	tenant := e.asTenant()
	e.create(statefulSet("web", 1), statefulSet("absent", 1))
	before := e.awaitRunning(nil, "web-0", "absent-0")
	e.scale("absent", 0)
	e.awaitRecord("absent-0", func(f *v1alpha1.FixedIP) bool { return reservation.StateOf(f) == reservation.Reserved })
	running, reserved := before["web-0"].Address, before["absent-0"].Address

	// The API server refuses to read, change and delete objects of another namespace.
	theirs := &v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web-0"}}
	for what, err := range map[string]error{
		"get":         tenant.Get(within(t), client.ObjectKeyFromObject(theirs), theirs.DeepCopy()),
		"list":        tenant.List(within(t), &v1alpha1.FixedIPList{}, client.InNamespace(namespace)),
		"list all":    tenant.List(within(t), &v1alpha1.FixedIPList{}),
		"create":      tenant.Create(within(t), beforehand("new", "new-0", "10.240.0.200")),
		"patch":       tenant.Patch(within(t), theirs.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"reclaim":{"ttlSeconds":1}}}`))),
		"status":      tenant.Status().Patch(within(t), theirs.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"status":{"podUID":"1"}}`))),
		"delete":      tenant.Delete(within(t), theirs.DeepCopy()),
		"delete pods": tenant.Delete(within(t), aPod("web-0")),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s in another namespace: got error %v, want Forbidden", what, err)
		}
	}

	// An editor can create, change, list and delete FixedIPs, and cannot write their status.
	editor := e.asEditor()
	own := tenantFixedIP("own-0", "10.240.0.200")
	e.must(editor.Create(within(t), own))
	e.must(editor.Patch(within(t), own, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"reclaim":{"ttlSeconds":60}}}`))))
	e.must(editor.List(within(t), &v1alpha1.FixedIPList{}, client.InNamespace(tenantSpace), client.MatchingFields{"spec.podName": "own-0"}))
	if err := editor.Status().Patch(within(t), own, client.RawPatch(types.MergePatchType, []byte(`{"status":{"podUID":"1"}}`))); !apierrors.IsForbidden(err) {
		t.Errorf("status patch by an editor: got error %v, want Forbidden", err)
	}
	e.must(editor.Delete(within(t), own))

	// The tenant's FixedIPs name the addresses of a running and an absent pod, and have the names of these pods or
	// another name.
	var named []*v1alpha1.FixedIP
	for name, ip := range map[string]string{"web-0": running, "thief-0": running, "absent-0": reserved} {
		f := tenantFixedIP(name, ip)
		e.must(tenant.Create(within(t), f))
		named = append(named, f)
	}
	for _, f := range named {
		e.eventually("the tenant's FixedIP "+f.Name+" to be refused the address", func() bool {
			e.must(tenant.Get(within(t), client.ObjectKeyFromObject(f), f))
			return meta.IsStatusConditionFalse(f.Status.Conditions, v1alpha1.ConditionAllocated)
		})
		for _, c := range f.Status.Conditions {
			if strings.Contains(c.Message, namespace+"/") {
				t.Errorf("FixedIP %s shows the tenant an object of another namespace: %s", f.Name, c.Message)
			}
		}
	}
	// The tenant's pods request these addresses.
	asks := statefulSet("asks", 1, onTemplate(request.AnnotationIPs, running))
	same := statefulSet("same", 1, onTemplate(request.AnnotationIPs, reserved))
	for _, s := range []client.Object{asks, same} {
		s.SetNamespace(tenantSpace)
		e.must(tenant.Create(within(t), s))
	}
	for _, name := range []string{"asks-0", "same-0"} {
		e.eventually("the tenant's pod "+name+" to be refused the address", func() bool {
			var pod corev1.Pod
			if err := tenant.Get(within(t), client.ObjectKey{Namespace: tenantSpace, Name: name}, &pod); err != nil {
				return false
			}
			if pod.Spec.NodeName != "" {
				t.Fatalf("pod %s was placed on node %s, want it refused", name, pod.Spec.NodeName)
			}
			i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodScheduled && c.Message != "" })
			if i >= 0 && strings.Contains(pod.Status.Conditions[i].Message, namespace+"/") {
				t.Errorf("pod %s shows the tenant an object of another namespace: %s", name, pod.Status.Conditions[i].Message)
			}
			return i >= 0 && strings.Contains(pod.Status.Conditions[i].Message, "another namespace")
		})
	}

	// No pod loses its address, neither while the FixedIPs of the tenant exist nor after they and the pods
	// that request the addresses are deleted.
	e.deletePods("web-0")
	again := e.awaitRunning(before, "web-0")
	for _, f := range named {
		e.must(tenant.Delete(within(t), f))
	}
	e.eventually("the FixedIPs of the tenant to be deleted", func() bool {
		var list v1alpha1.FixedIPList
		e.must(tenant.List(within(t), &list, client.InNamespace(tenantSpace)))
		return !slices.ContainsFunc(list.Items, func(f v1alpha1.FixedIP) bool { return f.DeletionTimestamp != nil })
	})
	for _, s := range []client.Object{asks, same} {
		e.must(tenant.Delete(within(t), s))
	}
	e.eventually("the pods of the tenant to be deleted", func() bool {
		var list corev1.PodList
		e.must(tenant.List(within(t), &list, client.InNamespace(tenantSpace)))
		return len(list.Items) == 0
	})
	e.deletePods("web-0")
	e.scale("absent", 1)
	after := e.awaitRunning(again, "web-0", "absent-0")
	for name, b := range before {
		if a := after[name]; a.Address != b.Address || a.Node != b.Node || fmt.Sprint(a.Entries) != fmt.Sprint(b.Entries) {
			t.Errorf("pod %s had %s with the entries %v and has %s with the entries %v, want the same", name, b.Address, b.Entries, a.Address, a.Entries)
		}
	}

	// Without the admission policies, a FixedIP with an address outside of the cluster pools has no effect. With them, the API
	// server refuses the FixedIP.
	outside := tenantFixedIP("outside-0", "192.0.2.7")
	e.must(tenant.Create(within(t), outside))
	e.eventually("the tenant's FixedIP outside-0 to report SubnetNotFound", func() bool {
		e.must(tenant.Get(within(t), client.ObjectKeyFromObject(outside), outside))
		c := meta.FindStatusCondition(outside.Status.Conditions, v1alpha1.ConditionAllocated)
		return c != nil && c.Status == metav1.ConditionFalse && c.Reason == string(pool.SubnetNotFound)
	})
	e.must(tenant.Delete(within(t), outside))
	e.admit()
	// The controller writes the CIDRs of the cluster pools into the ConfigMap that the message names.
	const refusal = `denied request: spec.ips: Invalid value: "192.0.2.8": must be in the pools of the cluster (ConfigMap fixedip-cluster-pools): 10.240.0.0/16`
	e.eventually("the API server to refuse the address of outside-1", func() bool {
		err := tenant.Create(within(t), tenantFixedIP("outside-1", "192.0.2.8"), client.DryRunAll)
		return apierrors.IsInvalid(err) && strings.HasSuffix(err.Error(), refusal)
	})
	e.must(tenant.Create(within(t), tenantFixedIP("inside-0", "10.240.0.77"), client.DryRunAll))
	// Users who may write pools may use any address.
	e.must(e.api.Create(within(t), tenantFixedIP("outside-2", "192.0.2.8"), client.DryRunAll))
}
