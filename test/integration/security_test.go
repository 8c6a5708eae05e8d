// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/product"
	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// manifest returns the objects of a file in manifests.
func manifest(t *testing.T, file string) []client.Object {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "manifests", file))
	if err != nil {
		t.Fatal(err)
	}
	var objects []client.Object
	for doc := range strings.SplitSeq(string(text), "\n---\n") {
		obj, _, err := scheme.Codecs.UniversalDeserializer().Decode([]byte(doc), nil, nil)
		if err != nil {
			t.Fatalf("decode %s: %v", file, err)
		}
		objects = append(objects, obj.(client.Object))
	}
	return objects
}

// right returns a right as text: "verb group/resource/subresource name@namespace". The last part is left out if the right is
// not limited to a name or namespace.
func right(verb, group, resource, name, namespace string) string {
	text := verb + " " + group + "/" + resource
	if name != "" || namespace != "" {
		text += " " + name + "@" + namespace
	}
	return text
}

// granted returns the rights in the roles of a manifest, sorted. It fails the test if a role has rights to non-resource URLs.
func granted(t *testing.T, file string) []string {
	var all []string
	for _, obj := range manifest(t, file) {
		var rules []rbacv1.PolicyRule
		switch role := obj.(type) {
		case *rbacv1.ClusterRole:
			rules = role.Rules
		case *rbacv1.Role:
			rules = role.Rules
		}
		for _, rule := range rules {
			if len(rule.NonResourceURLs) > 0 {
				t.Errorf("%s: role %s has rights to non-resource URLs", file, obj.GetName())
			}
			names := rule.ResourceNames
			if len(names) == 0 {
				names = []string{""}
			}
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						for _, name := range names {
							all = append(all, right(verb, group, resource, name, obj.GetNamespace()))
						}
					}
				}
			}
		}
	}
	slices.Sort(all)
	return all
}

// each returns one right for each verb of a comma-separated list.
func each(verbs, group, resource string) []string {
	var all []string
	for verb := range strings.SplitSeq(verbs, ",") {
		all = append(all, right(verb, group, resource, "", ""))
	}
	return all
}

// may asks the API server whether an account has a right.
func (e *env) may(account, text string) bool {
	e.t.Helper()
	verb, rest, _ := strings.Cut(text, " ")
	path, where, _ := strings.Cut(rest, " ")
	name, ns, _ := strings.Cut(where, "@")
	parts := strings.SplitN(path, "/", 3)
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: serviceaccount.MakeUsername("fixedip-system", account), Groups: append(serviceaccount.MakeGroupNames("fixedip-system"), "system:authenticated"),
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Group: parts[0], Resource: parts[1], Name: name, Namespace: ns},
	}}
	if len(parts) == 3 {
		review.Spec.ResourceAttributes.Subresource = parts[2]
	}
	e.must(e.api.Create(within(e.t), review))
	return review.Status.Allowed
}

// TestG21Security checks the rights of the programs, the network policies, that only the leader of two controllers writes, and
// that managed fields and events show its writes (G21).
func TestG21Security(t *testing.T) {
	t.Parallel()
	e := start(t, options{noScheduler: true})
	e.part("least privilege", (*env).leastPrivilege)
	e.part("network policies", (*env).networkPolicies)
	e.part("one writer and its trail", (*env).oneWriter)
}

// leastPrivilege checks that the roles grant exactly the rights that the programs need, and none that would help an attacker
// who has taken over a service account.
func (e *env) leastPrivilege() {
	const system = "fixedip-system"
	used := map[string][]string{
		"fixedip-controller": slices.Concat(
			each("get,list,watch", "", "nodes"), each("get,list,watch", "", "pods"), each("create", "", "pods/eviction"), each("get", "", "persistentvolumeclaims"), each("get", "", "persistentvolumes"),
			each("get,list,watch", "apps", "statefulsets"), each("get,list,watch", "apps", "deployments"), each("list,watch", "apps", "replicasets"),
			each("get,list,watch,patch", "cilium.io", "ciliumnodes"), each("patch", "cilium.io", "ciliumnodes/status"),
			each("get,list,watch,patch,delete", "cilium.io", "ciliumendpoints"),
			each("get,list,watch,create,update,delete", "fixedip.io", "fixedips"), each("update", "fixedip.io", "fixedips/status"), each("get,list,watch,create,update,delete", "fixedip.io", "nodesubnets"), each("update", "fixedip.io", "nodesubnets/status"),
			each("create,patch", "events.k8s.io", "events"),
			each("create", "authentication.k8s.io", "tokenreviews"), each("create", "authorization.k8s.io", "subjectaccessreviews"),
			[]string{
				right("create", "coordination.k8s.io", "leases", "", system),
				right("get", "coordination.k8s.io", "leases", "cilium-ipam-leader", system), right("update", "coordination.k8s.io", "leases", "cilium-ipam-leader", system),
				right("create", "", "events", "", system),
				right("get", "", "configmaps", "cilium-config", "kube-system"),
				right("create", "", "configmaps", "", system),
				right("get", "", "configmaps", "fixedip-cluster-pools", system), right("update", "", "configmaps", "fixedip-cluster-pools", system),
			}),
		// These are in addition to the rights of every scheduler.
		"fixedip-scheduler": slices.Concat(
			each("get,list,watch,patch", "cilium.io", "ciliumnodes"), each("list,watch", "fixedip.io", "fixedips"),
			each("patch", "", "pods"), each("list,watch", "", "resourcequotas"), each("list,watch", "apps", "deployments"),
			[]string{
				right("create", "coordination.k8s.io", "leases", "", system),
				right("get", "coordination.k8s.io", "leases", "fixedip-scheduler", system), right("update", "coordination.k8s.io", "leases", "fixedip-scheduler", system),
				right("get", "", "configmaps", "cilium-config", "kube-system"),
			}),
	}
	refused := slices.Concat(
		each("get,list,watch", "", "secrets"), each("get,list", "", "configmaps"),
		each("create,get", "", "pods/exec"), each("create", "", "pods/attach"), each("create", "", "pods/portforward"), each("create", "", "pods/ephemeralcontainers"), each("get", "", "pods/log"),
		each("create,update", "", "pods"), each("create,update,patch,delete", "", "nodes"), each("get,create", "", "nodes/proxy"),
		each("create", "", "serviceaccounts/token"), each("impersonate", "", "users"), each("impersonate", "", "serviceaccounts"),
		each("create,update,patch,bind,escalate", "rbac.authorization.k8s.io", "clusterroles"), each("create", "rbac.authorization.k8s.io", "clusterrolebindings"), each("create", "rbac.authorization.k8s.io", "rolebindings"),
		each("create,update,delete,deletecollection", "cilium.io", "ciliumnodes"), each("create,update,deletecollection", "cilium.io", "ciliumendpoints"),
		each("create,update,patch,delete", "cilium.io", "ciliumnetworkpolicies"), each("get,list", "cilium.io", "ciliumidentities"),
		each("deletecollection", "fixedip.io", "fixedips"), each("create,update,patch,delete", "apps", "statefulsets"), each("create,update,patch,delete", "apps", "deployments"),
		each("create,update,patch,delete", "apiextensions.k8s.io", "customresourcedefinitions"), each("create,update", "admissionregistration.k8s.io", "validatingwebhookconfigurations"),
		each("delete", "", "namespaces"), each("*", "*", "*"),
		[]string{
			right("update", "", "configmaps", "fixedip-config", system), right("update", "", "configmaps", "cilium-config", "kube-system"), right("create", "", "configmaps", "", "kube-system"),
			right("update", "coordination.k8s.io", "leases", "another", system), right("delete", "coordination.k8s.io", "leases", "cilium-ipam-leader", system),
			right("update", "coordination.k8s.io", "leases", "node-1", "kube-node-lease"), right("update", "coordination.k8s.io", "leases", "cilium-ipam-leader", "kube-system"),
		})
	own := map[string][]string{
		// The controller evicts pods, which a PodDisruptionBudget can refuse, and does not delete them.
		"fixedip-controller": slices.Concat(each("patch,delete,deletecollection", "", "pods"), each("create", "", "pods/binding"), each("patch,update", "", "pods/status"), each("update", "fixedip.io", "fixedips/finalizers")),
		// The scheduler does not write FixedIPs, the status of CiliumNodes or CiliumEndpoints, and does not evict pods.
		"fixedip-scheduler": slices.Concat(each("get,create,update,patch,delete", "fixedip.io", "fixedips"), each("update,patch", "fixedip.io", "fixedips/status"),
			each("patch,update", "cilium.io", "ciliumnodes/status"), each("get,patch,delete", "cilium.io", "ciliumendpoints"), each("create", "", "pods/eviction")),
	}
	for account, file := range map[string]string{"fixedip-controller": "controller-rbac.yaml", "fixedip-scheduler": "scheduler-rbac.yaml"} {
		want := used[account]
		slices.Sort(want)
		if got := granted(e.t, file); !slices.Equal(got, want) {
			e.t.Errorf("%s grants\n%s\nwant\n%s", file, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		for _, text := range want {
			if !e.may(account, text) {
				e.t.Errorf("account %s does not have the right %q, which it needs", account, text)
			}
		}
		for _, text := range append(own[account], refused...) {
			if e.may(account, text) {
				e.t.Errorf("account %s has the right %q, want it refused", account, text)
			}
		}
	}
}

// networkPolicies checks that the policies match the Deployments, open only served ports, and are accepted by the API
// server, and that containers drop all unneeded privileges.
func (e *env) networkPolicies() {
	manifests := filepath.Join("..", "..", "manifests")
	for _, file := range []string{"controller.yaml", "scheduler.yaml", "networkpolicy.yaml"} {
		e.must(e.Apply(within(e.t), filepath.Join(manifests, file)))
	}
	served := map[string]int32{"fixedip-controller": 9470, "fixedip-scheduler": 10269}
	deployments := map[string]*appsv1.Deployment{}
	for _, obj := range append(manifest(e.t, "controller.yaml"), manifest(e.t, "scheduler.yaml")...) {
		if d, ok := obj.(*appsv1.Deployment); ok {
			deployments[d.Name] = d
			c := d.Spec.Template.Spec.Containers[0]
			want := &corev1.SecurityContext{
				RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](65532), RunAsGroup: ptr.To[int64](65532), ReadOnlyRootFilesystem: ptr.To(true), AllowPrivilegeEscalation: ptr.To(false),
				Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			}
			if !apiequality.Semantic.DeepEqual(c.SecurityContext, want) {
				e.t.Errorf("the container of %s has the security context %v, want %v", d.Name, c.SecurityContext, want)
			}
			port := fmt.Sprint(served[d.Name])
			if !slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return fmt.Sprint(p.ContainerPort) == port }) && !slices.Contains(c.Args, "--secure-port="+port) {
				e.t.Errorf("%s does not serve port %s, which its network policy opens", d.Name, port)
			}
		}
	}
	var policies networkingv1.NetworkPolicyList
	e.must(e.api.List(within(e.t), &policies, client.InNamespace("fixedip-system")))
	if len(policies.Items) != len(served) || len(deployments) != len(served) {
		e.t.Fatalf("there are %d network policies and %d Deployments, want %d of each", len(policies.Items), len(deployments), len(served))
	}
	for _, p := range policies.Items {
		d := deployments[p.Name]
		selector, err := metav1.LabelSelectorAsSelector(&p.Spec.PodSelector)
		e.must(err)
		if d == nil || !selector.Matches(labels.Set(d.Spec.Template.Labels)) || p.Namespace != d.Namespace {
			e.t.Errorf("policy %s selects %s, want the pods of the Deployment with the same name and namespace", p.Name, selector)
			continue
		}
		if want := []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}; !slices.Equal(p.Spec.PolicyTypes, want) {
			e.t.Errorf("policy %s has the types %v, want %v", p.Name, p.Spec.PolicyTypes, want)
		}
		var in, out []string
		for _, rule := range p.Spec.Ingress {
			if len(rule.From) == 0 {
				e.t.Errorf("policy %s allows ingress from any source", p.Name)
			}
			in = append(in, ports(rule.Ports)...)
		}
		for _, rule := range p.Spec.Egress {
			out = append(out, ports(rule.Ports)...)
		}
		if want := []string{fmt.Sprintf("TCP %d", served[p.Name])}; !slices.Equal(in, want) {
			e.t.Errorf("policy %s allows ingress to %v, want %v", p.Name, in, want)
		}
		if want := []string{"TCP 443", "TCP 6443"}; !slices.Equal(out, want) {
			e.t.Errorf("policy %s allows egress to %v, want %v", p.Name, out, want)
		}
	}
}

func ports(list []networkingv1.NetworkPolicyPort) []string {
	var texts []string
	for _, p := range list {
		texts = append(texts, fmt.Sprintf("%s %s", *p.Protocol, p.Port))
	}
	return texts
}

// oneWriter checks that only the leader of two replicas writes, and that managed fields and events show its writes.
func (e *env) oneWriter() {
	gate := e.writeGate()
	e.startController("leader", defaultPool...)
	e.startNode("node-1")
	e.must(e.WaitNodeReady(within(e.t), "node-1"))
	port := freePort(e.t)
	_, err := product.StartController(e.Cluster, "standby", filepath.Join(bin, "race", "fixedip-controller"), product.ControllerOptions{
		Lease: testLease, Kubeconfig: gate.kubeconfig, Args: append([]string{fmt.Sprintf("--metrics-bind-address=127.0.0.1:%d", port)}, defaultPool...),
	})
	e.must(err)
	standby := &replica{e: e, name: "standby", metrics: port}
	standby.leads("cilium-ipam-leader", false)
	e.startScheduler("scheduler", product.SchedulerOptions{})
	e.create(statefulSet("web", 2))
	before := e.awaitRunning(nil, names("web", 2)...)
	e.awaitRecord("web-0", func(f *v1alpha1.FixedIP) bool {
		return meta.IsStatusConditionTrue(f.Status.Conditions, v1alpha1.ConditionAllocated)
	})
	for _, f := range e.witness.Record(namespace, "web-0").ManagedFields {
		if f.Manager != "fixedip-controller" {
			e.t.Errorf("field manager %s wrote the FixedIP of web-0, want only fixedip-controller", f.Manager)
		}
	}
	e.delete(statefulSet("web", 2))
	e.await("wait for all pods, FixedIPs and entries to be deleted", nothingLeft)
	e.trail(map[string]string{"node-1": "SubnetAssigned", "web": "AddressReleased"})
	if n := gate.writes(); n > 0 {
		e.t.Errorf("the standby made %d writes, want 0", n)
	}

	e.must(e.Process("leader").Kill())
	standby.leads("cilium-ipam-leader", true)
	e.create(statefulSet("web", 2))
	e.awaitRunning(before, names("web", 2)...)
	if n := gate.writes(); n == 0 {
		e.t.Error("the write gate counted no write of the new leader")
	}
	e.delete(statefulSet("web", 2))
	e.await("wait for all pods, FixedIPs and entries to be deleted", nothingLeft)
}

// trail waits for events of the controller. Key of want: the object. Value: the reason.
func (e *env) trail(want map[string]string) {
	e.t.Helper()
	for name, reason := range want {
		e.eventually(fmt.Sprintf("the event %s on %s", reason, name), func() bool {
			var list eventsv1.EventList
			if err := e.api.List(context.Background(), &list); err != nil {
				return false
			}
			return slices.ContainsFunc(list.Items, func(ev eventsv1.Event) bool {
				return ev.Regarding.Name == name && ev.Reason == reason && ev.ReportingController == "fixedip-controller" && ev.Note != ""
			})
		})
	}
}
