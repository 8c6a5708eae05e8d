// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta/testrestmapper"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/check"
	"fixedip.io/fixedip/ipam/core/explain"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/scheme"
	"fixedip.io/fixedip/test/gen"
)

// fakeCluster returns a cluster that contains the objects. Its API server selects pods by their first IP, as a real one
// does.
func fakeCluster(t *testing.T, objects ...client.Object) *cluster {
	t.Helper()
	kinds, err := scheme.New()
	if err != nil {
		t.Fatal(err)
	}
	firstIP := func(o client.Object) (ips []string) {
		for _, ip := range o.(*corev1.Pod).Status.PodIPs[:min(1, len(o.(*corev1.Pod).Status.PodIPs))] {
			ips = append(ips, ip.IP)
		}
		return ips
	}
	api := fake.NewClientBuilder().WithScheme(kinds).WithRESTMapper(testrestmapper.TestOnlyStaticRESTMapper(kinds)).WithObjects(objects...).WithStatusSubresource(&ciliumv2.CiliumNode{})
	eventOf := func(o client.Object) []string { return []string{o.(*corev1.Event).InvolvedObject.Name} }
	nodeOf := func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }
	return &cluster{api: api.WithIndex(&corev1.Pod{}, "status.podIP", firstIP).WithIndex(&corev1.Pod{}, "spec.nodeName", nodeOf).
		WithIndex(&corev1.Event{}, "involvedObject.name", eventOf).Build()}
}

// mismatched returns a pod that runs with a wrong address, and its FixedIP, which reserves the address ip. kind is the kind
// of the workload web, in the API group apps.
func mismatched(name, wrong, ip, kind string) (*corev1.Pod, *v1alpha1.FixedIP) {
	record := gen.FixedIP(name, gen.Owner("web"), func(f *v1alpha1.FixedIP) { f.Spec.IPs, f.Spec.Owner.Kind = []string{ip}, kind })
	return gen.Pod(name, gen.On("node-1", wrong), gen.Running, gen.Controlled("web", "1")), record
}

// pooled returns a CiliumNode whose pool has these entries. Key: the address. Value: the pod and the workload, separated by
// a space.
func pooled(entries map[string]string) *ciliumv2.CiliumNode {
	cn := gen.CiliumNode("node-1", "10.0.1.0/24")
	cn.UID, cn.Generation = "uid-node-1", 1
	cn.Spec.IPAM.Pool = ipamtypes.AllocationMap{}
	for ip, text := range entries {
		owner, resource, _ := strings.Cut(text, " ")
		cn.Spec.IPAM.Pool[ip] = ipamtypes.AllocationIP{Owner: owner, Resource: resource}
	}
	return cn
}

// fixed returns the lines that check --fix logs for a cluster, and the error of the repairs.
func fixed(t *testing.T, c *cluster, policy identity.OnMismatch) (lines []string, failed error) {
	t.Helper()
	var log strings.Builder
	problems, err := c.check(t.Context(), checkTimes{stuck: check.DefaultStuckAfter})
	if err != nil {
		t.Fatal(err)
	}
	_, failed = c.repair(t.Context(), &log, problems, policy)
	for line := range strings.Lines(log.String()) {
		lines = append(lines, strings.TrimSuffix(line, "\n"))
	}
	return lines, failed
}

// TestFixAndMismatchPolicy checks that check --fix evicts a pod with a wrong address only if its mismatch policy is Restart.
func TestFixAndMismatchPolicy(t *testing.T) {
	const (
		evicted  = "WrongAddress of Pod db/web-0: evicted pod db/web-0."
		reported = "WrongAddress of Pod db/web-0: not evicted, because its mismatch policy is Report; delete the pod, or set the annotation fixedip.io/mismatch-policy of its workload to Restart: the repair was skipped."
		unknown  = "WrongAddress of Pod db/web-0: not evicted, because neither its workload nor the pod has the annotation fixedip.io/mismatch-policy; if mismatchPolicy of the configuration is Restart, use --mismatch-policy=Restart: the repair was skipped."
	)
	for name, c := range map[string]struct {
		// workload and pod are the values of the annotation; empty: there is none.
		workload, pod string
		// gone is true if the workload does not exist.
		gone bool
		// policy is the mismatch policy that applies without an annotation.
		policy identity.OnMismatch
		want   string
	}{
		"no annotation, and the policy of the configuration is Restart": {policy: identity.Restart, want: evicted},
		"no annotation, and the policy of the configuration is unknown": {policy: identity.Report, want: unknown},
		"the workload says Report":                                      {workload: "Report", policy: identity.Restart, want: reported},
		"the workload says Report and the pod Restart":                  {workload: "Report", pod: "Restart", policy: identity.Restart, want: reported},
		"the workload says Restart and the pod Report":                  {workload: "Restart", pod: "Report", policy: identity.Report, want: evicted},
		"the pod says Report":                                           {pod: "Report", policy: identity.Restart, want: reported},
		"the pod says Restart":                                          {pod: "Restart", policy: identity.Report, want: evicted},
		"the workload is gone, and the pod says Restart":                {gone: true, pod: "Restart", policy: identity.Report, want: evicted},
		"a typo in the annotation of the workload": {workload: "report", policy: identity.Restart,
			want: `WrongAddress of Pod db/web-0: not evicted, because annotation fixedip.io/mismatch-policy of the workload is "report"; write Restart or Report: the repair was skipped.`},
	} {
		t.Run(name, func(t *testing.T) {
			annotate := func(o client.Object, value string) {
				if value != "" {
					o.SetAnnotations(map[string]string{identity.AnnotationOnMismatch: value})
				}
			}
			workload := gen.StatefulSet(gen.Namespace, "web", 1)
			pod, record := mismatched("web-0", "10.0.1.1", "10.0.1.6", "StatefulSet")
			annotate(workload, c.workload)
			annotate(pod, c.pod)
			objects := []client.Object{pooled(map[string]string{"10.0.1.6": "db/web-0 db/StatefulSet/web"}), pod, record}
			if !c.gone {
				objects = append(objects, workload)
			}
			got, err := fixed(t, fakeCluster(t, objects...), c.policy)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{c.want}, got); diff != "" {
				t.Errorf("repairs (-want +got):\n%s", diff)
			}
		})
	}
}

// TestFixWithoutRightsToTheWorkload checks that check --fix does not evict a pod whose workload it cannot read, because an
// annotation of the workload may say Report.
func TestFixWithoutRightsToTheWorkload(t *testing.T) {
	pod, record := mismatched("web-0", "10.0.1.1", "10.0.1.6", "StatefulSet")
	c := fakeCluster(t, pooled(map[string]string{"10.0.1.6": "db/web-0 db/StatefulSet/web"}), pod, record)
	c.api = interceptor.NewClient(c.api.(client.WithWatch), interceptor.Funcs{Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		if o.GetObjectKind().GroupVersionKind().Kind == "StatefulSet" {
			return apierrors.NewForbidden(schema.GroupResource{Group: "apps", Resource: "statefulsets"}, key.Name, nil)
		}
		return api.Get(ctx, key, o, opts...)
	}})
	want := `WrongAddress of Pod db/web-0: pod db/web-0 is not evicted, because the mismatch policy of its workload is unknown: read StatefulSet db/web: statefulsets.apps "web" is forbidden: <nil>.`
	if got, err := fixed(t, c, identity.Restart); err == nil || len(got) != 1 || got[0] != want {
		t.Errorf("got the lines %q and the error %v, want an error and the line %q", got, err, want)
	}
}

// TestFixWithoutAnAnswer checks that check --fix evicts no second pod of a workload if the eviction of the first may have taken
// effect, and that it tries the second pod if the API server refused the first eviction.
func TestFixWithoutAnAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		err   error
		tries int
	}{
		"a timeout": {err: context.DeadlineExceeded, tries: 1},
		"a budget":  {err: apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0), tries: 2},
	} {
		t.Run(name, func(t *testing.T) {
			objects := []client.Object{gen.StatefulSet(gen.Namespace, "web", 2), pooled(map[string]string{"10.0.1.6": "db/web-0 db/StatefulSet/web", "10.0.1.7": "db/web-1 db/StatefulSet/web"})}
			for i, wrong := range []string{"10.0.1.1", "10.0.1.2"} {
				pod, record := mismatched(fmt.Sprintf("web-%d", i), wrong, fmt.Sprintf("10.0.1.%d", 6+i), "StatefulSet")
				objects = append(objects, pod, record)
			}
			cluster, tries := fakeCluster(t, objects...), 0
			cluster.api = interceptor.NewClient(cluster.api.(client.WithWatch), interceptor.Funcs{SubResourceCreate: func(context.Context, client.Client, string, client.Object, client.Object, ...client.SubResourceCreateOption) error {
				tries++
				return c.err
			}})
			if _, err := fixed(t, cluster, identity.Restart); !errors.Is(err, c.err) || tries != c.tries {
				t.Errorf("got %d evictions and error %v, want %d and error %v", tries, err, c.tries, c.err)
			}
		})
	}
}

// TestFixDuringARollingUpdate checks that check --fix evicts only one pod of a Deployment at a time, although the pods of a
// rolling update belong to two ReplicaSets.
func TestFixDuringARollingUpdate(t *testing.T) {
	objects := []client.Object{pooled(map[string]string{"10.0.1.6": "db/web-old-x db/Deployment/web", "10.0.1.7": "db/web-new-y db/Deployment/web"})}
	for _, p := range []struct{ replicaSet, name, wrong, ip string }{{"web-old", "web-old-x", "10.0.1.1", "10.0.1.6"}, {"web-new", "web-new-y", "10.0.1.2", "10.0.1.7"}} {
		pod, record := mismatched(p.name, p.wrong, p.ip, "Deployment")
		pod.OwnerReferences[0].Kind, pod.OwnerReferences[0].Name, pod.OwnerReferences[0].UID = "ReplicaSet", p.replicaSet, types.UID("uid-"+p.replicaSet)
		objects = append(objects, pod, record)
	}
	c := fakeCluster(t, objects...)
	got, err := fixed(t, c, identity.Restart)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"WrongAddress of Pod db/web-new-y: evicted pod db/web-new-y.",
		"WrongAddress of Pod db/web-old-x: not repaired now, because another pod of the workload was evicted, or may have been; run the command again when that pod has been replaced.",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("repairs (-want +got):\n%s", diff)
	}
}

// TestFixLeakedEntry checks that check --fix releases a leaked entry only if it knows that the workload of the entry does
// not exist, whatever the API group of the workload is.
func TestFixLeakedEntry(t *testing.T) {
	const released = "LeakedEntry of CiliumNode node-1: released 10.0.1.9 on node node-1."
	for name, c := range map[string]struct {
		workload string
		objects  []client.Object
		// noEndpoints is true if the API server does not serve CiliumEndpoints.
		noEndpoints bool
		want        string
		fails       bool
	}{
		"without CiliumEndpoints":                        {workload: "db/StatefulSet/web", noEndpoints: true, want: released},
		"of a StatefulSet that does not exist":           {workload: "db/StatefulSet/web", want: released},
		"of a ReplicationController that does not exist": {workload: "db/ReplicationController/web", want: released},
		"of a ReplicationController that exists": {
			workload: "db/ReplicationController/web", objects: []client.Object{&corev1.ReplicationController{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "web"}}},
			want: "LeakedEntry of CiliumNode node-1: 10.0.1.9 is not released, because ReplicationController db/web exists: the repair was skipped.",
		},
		"of a Deployment that exists": {
			workload: "db/Deployment/web", objects: []client.Object{&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "web"}}},
			want: "LeakedEntry of CiliumNode node-1: 10.0.1.9 is not released, because Deployment db/web exists: the repair was skipped.",
		},
		"of a kind that is not installed": {
			workload: "db/StatefulSet.apps.kruise.io/web", fails: true,
			want: "LeakedEntry of CiliumNode node-1: it is unknown whether workload db/StatefulSet.apps.kruise.io/web exists, because the API server does not serve the kind StatefulSet.apps.kruise.io.",
		},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := fakeCluster(t, append(c.objects, pooled(map[string]string{"10.0.1.9": "db/web-0 " + c.workload}))...)
			if c.noEndpoints {
				cluster = failing(t, cluster, &ciliumv2.CiliumEndpointList{}, apierrors.NewNotFound(schema.GroupResource{Resource: "ciliumendpoints"}, ""))
			}
			got, err := fixed(t, cluster, identity.Report)
			if (err != nil) != c.fails {
				t.Errorf("got the error %v, want an error: %v", err, c.fails)
			}
			if diff := cmp.Diff([]string{c.want}, got); diff != "" {
				t.Errorf("repairs (-want +got):\n%s", diff)
			}
		})
	}
}

// TestIPOfBothFamilies checks that kubectl fixedip ip finds a pod by each of its IPs, whatever the primary family of the
// cluster is.
func TestIPOfBothFamilies(t *testing.T) {
	c := fakeCluster(t, gen.Pod("first4", gen.On("node-1", "10.0.1.6", "fd00::6")), gen.Pod("first6", gen.On("node-1", "fd00::7", "10.0.1.7")))
	for ip, want := range map[string]string{"10.0.1.6": "db/first4", "fd00::6": "db/first4", "10.0.1.7": "db/first6", "fd00::7": "db/first6"} {
		in, err := c.addressInputs(t.Context(), netip.MustParseAddr(ip))
		if err != nil {
			t.Fatal(err)
		}
		var pods []string
		for _, f := range explain.Address(in).Facts {
			if f.What == "Pod" {
				pods = append(pods, f.Is)
			}
		}
		if diff := cmp.Diff([]string{want + " on node node-1"}, pods); diff != "" {
			t.Errorf("pods with %s (-want +got):\n%s", ip, diff)
		}
	}
}
