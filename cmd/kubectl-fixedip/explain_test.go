// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/explain"
	"fixedip.io/fixedip/test/gen"
)

// withRightsOf returns a cluster whose user may read only objects of a namespace.
func withRightsOf(namespace string, c *cluster) *cluster {
	forbidden := func(what string) error {
		return apierrors.NewForbidden(schema.GroupResource{Resource: what}, "", nil)
	}
	api := interceptor.NewClient(c.api.(client.WithWatch), interceptor.Funcs{
		List: func(ctx context.Context, api client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			o := client.ListOptions{}
			o.ApplyOptions(options)
			if o.Namespace != namespace {
				return forbidden("objects")
			}
			return api.List(ctx, list, options...)
		},
		Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			if key.Namespace != namespace {
				return forbidden("objects")
			}
			return api.Get(ctx, key, o, options...)
		},
	})
	return &cluster{api: api, namespace: namespace}
}

// explained returns the text that kubectl fixedip explain writes about a pod, and whether its exit code is 1.
func explained(t *testing.T, c *cluster, pod string) (text string, problem bool) {
	t.Helper()
	in, err := c.inputs(t.Context(), pod, leases{"fixedip-system/cilium-ipam-leader", "fixedip-system/fixedip-scheduler"}, "fixedip-system/fixedip-config")
	if err != nil {
		t.Fatal(err)
	}
	report := explain.Explain(in)
	var out strings.Builder
	if err := writeReport(&out, report); err != nil {
		t.Fatal(err)
	}
	return out.String(), errors.Is(problemsOf(report), errProblems)
}

// configMap returns the ConfigMap of the configuration.
func configMap(text string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "fixedip-system", Name: "fixedip-config"},
		Data:       map[string]string{configurationKey: "apiVersion: config.fixedip.io/v1alpha1\nkind: FixedIPConfiguration\n" + text},
	}
}

const clusterPools = "subnets: {clusterPools: [{cidr: 10.0.0.0/16}]}\n"

// TestExplainCommand checks the whole output of explain for different objects, rights and configurations.
func TestExplainCommand(t *testing.T) {
	pool := pooled(map[string]string{"10.0.1.6": "db/web-0 db/StatefulSet/web"})
	pod := func(scheduler string) *corev1.Pod {
		return gen.Pod("web-0", gen.Controlled("web", "1"), func(p *corev1.Pod) {
			p.Spec.SchedulerName, p.CreationTimestamp = scheduler, metav1.Time{Time: time.Now().Add(-time.Hour)}
		})
	}
	replicaSet := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "api-5", UID: "rs-1", OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "api", Controller: ptr.To(true)}}}}
	ofDeployment := gen.Pod("api-5-x", gen.On("node-1", "10.0.1.9"), gen.Running, func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "api-5", UID: "rs-1", Controller: ptr.To(true)}}
		p.Spec.SchedulerName = "batch"
	})
	record, node := gen.FixedIP("web-0", gen.Owner("web"), func(f *v1alpha1.FixedIP) { f.Spec.NodeName = "node-1" }), gen.Node("node-1")
	for name, c := range map[string]struct {
		objects []client.Object
		// rights is the namespace that the user may read; empty: all.
		rights  string
		pod     string
		want    string
		problem bool
	}{
		"runs": {
			objects: []client.Object{pool, record, node, configMap(clusterPools), gen.Pod("web-0", gen.On("node-1", "10.0.1.6"), gen.Running, gen.Controlled("web", "1"))},
			pod:     "web-0",
			want: `Pod:       db/web-0, Running on node node-1 with 10.0.1.6
FixedIP:   10.0.1.6, not reconciled yet, for StatefulSet web
Pool:      node node-1 has an entry for 10.0.1.6
Node:      node-1: ready; free IPv4 addresses: 253; subnets: 10.0.1.0/24; its agent has not reported yet which addresses are in use

- The pod runs with its fixed address 10.0.1.6.
`,
		},
		"waits for a profile of the configuration": {
			objects: []client.Object{pool, record, node, pod("batch"), configMap(clusterPools + "schedulerNames: [batch]\n")},
			pod:     "web-0", problem: true,
			want: `Pod:       db/web-0, not placed for 60m
FixedIP:   10.0.1.6, not reconciled yet, for StatefulSet web
Pool:      node node-1 has an entry for 10.0.1.6
Node:      node-1: ready; free IPv4 addresses: 253; subnets: 10.0.1.0/24; its agent has not reported yet which addresses are in use

- Address 10.0.1.6 of the pod belongs to node node-1, which is ready and not cordoned.
`,
		},
		"the configuration does not name the scheduler": {
			objects: []client.Object{pool, record, node, pod("batch"), configMap(clusterPools)},
			pod:     "web-0", problem: true,
			want: `Pod:       db/web-0, not placed for 60m
FixedIP:   10.0.1.6, not reconciled yet, for StatefulSet web
Pool:      node node-1 has an entry for 10.0.1.6
Node:      node-1: ready; free IPv4 addresses: 253; subnets: 10.0.1.0/24; its agent has not reported yet which addresses are in use

! The pod waits for batch, which is not among the known profiles of fixedip-scheduler (fixedip-scheduler).
  what helps: set schedulerName: fixedip-scheduler in the pod template
- Address 10.0.1.6 of the pod belongs to node node-1, which is ready and not cordoned.
`,
		},
		"a kind of the configuration": {
			objects: []client.Object{ofDeployment, replicaSet, node, configMap(clusterPools + "schedulerNames: [batch]\nworkloads: [{apiGroup: apps, kind: Deployment, identity: Slot, enabled: ByDefault}]\n")},
			pod:     "api-5-x", problem: true,
			want: `Pod:       db/api-5-x, Running on node node-1 with 10.0.1.9
FixedIP:   none
Pool:      no node has an owned entry for the pod

! The pod is bound to node node-1, but neither a pool entry nor a FixedIP reserves an address for it.
  what helps: see the events of the pod: the controller restores a lost entry, or evicts the pod if its mismatch policy is Restart and it is not a bare pod; if neither happens, run kubectl -n db delete pod api-5-x; the next pod gets a fixed address; if StatefulSets are configured with enabled: ByAnnotation, a pod without the annotation fixedip.io/enabled: "true" has no fixed address, and nothing has to be done
`,
		},
		"with the rights of the namespace": {
			objects: []client.Object{pool, record, node, configMap(clusterPools), pod("fixedip-scheduler")},
			rights:  "db", pod: "web-0", problem: true,
			want: `Pod:        db/web-0, not placed for 60m
FixedIP:    10.0.1.6, not reconciled yet, for StatefulSet web
Node:       node-1
Not read:   ConfigMap fixedip-system/fixedip-config (forbidden), CiliumNodes (forbidden), nodes (forbidden), FixedIPs of other namespaces (forbidden), Lease fixedip-system/cilium-ipam-leader (forbidden), Lease fixedip-system/fixedip-scheduler (forbidden)

- Address 10.0.1.6 of the pod is reserved; previous node: node-1; the state of the node is unknown.
`,
		},
		"a quota prevents the pod": {
			objects: []client.Object{pool, record, node, configMap(clusterPools), gen.StatefulSet("db", "web", 1), &corev1.Event{
				ObjectMeta:     metav1.ObjectMeta{Namespace: "db", Name: "web.1"},
				InvolvedObject: corev1.ObjectReference{Kind: "StatefulSet", Namespace: "db", Name: "web"}, Reason: "FailedCreate", LastTimestamp: metav1.Time{Time: time.Now().Add(-time.Hour)},
				Message: "create Pod web-0 in StatefulSet web failed error: exceeded quota: small",
			}},
			pod: "web-0", problem: true,
			want: `Pod:       db/web-0 does not exist
FixedIP:   10.0.1.6, not reconciled yet, for StatefulSet web
Pool:      node node-1 has an entry for 10.0.1.6
Node:      node-1: ready; free IPv4 addresses: 253; subnets: 10.0.1.0/24; its agent has not reported yet which addresses are in use

! StatefulSet web cannot create the pod (last event 60m ago): create Pod web-0 in StatefulSet web failed error: exceeded quota: small.
  what helps: raise the ResourceQuota that the message names, or delete pods that are not needed; the workload tries again
- Address 10.0.1.6 is reserved for the pod that StatefulSet web is about to create.
`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := fakeCluster(t, c.objects...)
			cluster.namespace = "db"
			if c.rights != "" {
				cluster = withRightsOf(c.rights, cluster)
			}
			got, problem := explained(t, cluster, c.pod)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("explain (-want +got):\n%s", diff)
			}
			if problem != c.problem {
				t.Errorf("exit code is 1: got %v, want %v", problem, c.problem)
			}
		})
	}
}

// TestIPCommand checks the whole output of ip for a user with all rights and for one with the rights of a namespace.
func TestIPCommand(t *testing.T) {
	at := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	pod := gen.Pod("web-0", gen.On("node-1", "10.0.1.6"), gen.Running, gen.Controlled("web", "1"))
	event := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: "db", Name: "web-0.1"},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "db", Name: "web-0"}, Reason: "Adopted", LastTimestamp: metav1.Time{Time: at},
		Message: "Reserved the pod's current IPs: 10.0.1.6",
	}
	record := gen.FixedIP("web-0", gen.Owner("web"), func(f *v1alpha1.FixedIP) { f.CreationTimestamp = metav1.Time{Time: time.Now().Add(-time.Hour)} })
	for name, c := range map[string]struct {
		rights string
		want   string
	}{
		"all rights": {want: `Address:   10.0.1.6
Entry:     node node-1: owned by db/web-0 (StatefulSet web)
Subnet:    10.0.1.0/24 of node node-1
FixedIP:   db/web-0 for pod web-0, created 60m ago
Pod:       db/web-0 on node node-1

TIME                   OBJECT         EVENT     MESSAGE
2026-11-27T12:00:00Z   Pod db/web-0   Adopted   Reserved the pod's current IPs: 10.0.1.6
`},
		"rights of the namespace": {rights: "db", want: `Address:    10.0.1.6
FixedIP:    db/web-0 for pod web-0, created 60m ago
Pod:        db/web-0 on node node-1
Not read:   CiliumNodes (forbidden), FixedIPs of other namespaces (forbidden), pods of other namespaces (forbidden), CiliumEndpoints of other namespaces (forbidden), events of other namespaces (forbidden)

TIME                   OBJECT         EVENT     MESSAGE
2026-11-27T12:00:00Z   Pod db/web-0   Adopted   Reserved the pod's current IPs: 10.0.1.6
`},
	} {
		cluster := fakeCluster(t, pooled(map[string]string{"10.0.1.6": "db/web-0 db/StatefulSet/web"}), record, pod, event)
		if c.rights != "" {
			cluster = withRightsOf(c.rights, cluster)
		}
		in, err := cluster.addressInputs(t.Context(), netip.MustParseAddr("10.0.1.6"))
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if err := writeReport(&out, explain.Address(in)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, out.String()); diff != "" {
			t.Errorf("%s: ip (-want +got):\n%s", name, diff)
		}
	}
}

// TestParseAddress checks which arguments of ip are addresses.
func TestParseAddress(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.1.6": "10.0.1.6", "FD00:0:0::00A": "fd00::a", "::ffff:10.0.1.6": "",
		"10.0.1.0/24": `"10.0.1.0/24" is a subnet; name one address of it (kubectl fixedip map shows subnets)`,
	} {
		got, err := parseAddress(text)
		switch {
		case err != nil && want != "" && err.Error() != want:
			t.Errorf("%s: got the error %q, want %q", text, err, want)
		case err == nil && got.String() != want:
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}
