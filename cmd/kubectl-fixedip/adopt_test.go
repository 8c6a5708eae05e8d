// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/core/conformance"
	"fixedip.io/fixedip/test/gen"
)

// TestAdoptCommand checks the output of adopt --preview, and its error if no selector is known.
func TestAdoptCommand(t *testing.T) {
	labelled := func(p *corev1.Pod) {
		p.Labels, p.Spec.SchedulerName = map[string]string{"app": "web"}, "default-scheduler"
	}
	objects := []client.Object{
		pooled(map[string]string{"10.0.1.6": "db/web-0 db/StatefulSet/web", "10.0.1.7": "", "10.0.1.8": "db/x-0 db/StatefulSet/x"}), gen.FixedIP("web-0", gen.Owner("web")),
		gen.Pod("web-0", gen.On("node-1", "10.0.1.6"), gen.Running, gen.Controlled("web", "1"), labelled),
		gen.Pod("web-1", gen.On("node-1", "10.0.1.7"), gen.Running, gen.Controlled("web", "1"), labelled),
		gen.Pod("web-2", gen.On("node-1", "10.0.1.8"), gen.Running, gen.Controlled("web", "1"), labelled),
		gen.Pod("web-3", gen.Controlled("web", "1"), labelled, func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }),
		gen.Pod("host", gen.On("node-1", "192.0.2.1"), gen.Running, labelled, func(p *corev1.Pod) { p.Spec.HostNetwork = true }),
	}
	const text = `NAMESPACE   POD     NODE     ADDRESSES   OUTCOME        REASON
db          host    node-1   192.0.2.1   NotSelected    the pod uses the host network
db          web-0   node-1   10.0.1.6    AlreadyFixed   FixedIP web-0
db          web-1   node-1   10.0.1.7    Adopted        -
db          web-2   node-1   10.0.1.8    Blocked        IP 10.0.1.8 on node node-1 belongs to pod db/x-0
db          web-3   -        -           AdoptedLater   the pod does not run with an IP that can be adopted yet; its phase is Pending

Pods: 5; restarts: 0
  pods that keep their current addresses as fixed addresses: 1
  pods that already have fixed addresses: 1
  selected pods that are adopted when they run with an address: 1
  selected pods that cannot be adopted: 1
  pods that the adoption does not concern: 1

The scheduler of an adopted pod does not know the node of the address. Set schedulerName of the pod templates to a profile of
fixedip-scheduler, so that the pods return to their nodes when they start again.
`
	for name, c := range map[string]struct {
		config string
		a      adoption
		want   string
		fails  string
	}{
		"a selector":                        {a: adoption{selector: "app=web"}, want: text},
		"all pods":                          {a: adoption{all: true}, want: text},
		"the selector of the configuration": {config: clusterPools + "adoption: {podSelector: {matchLabels: {app: web}}}\n", want: text},
		"the mismatch policy is Restart": {
			config: clusterPools + "mismatchPolicy: Restart\n", a: adoption{selector: "app=web"},
			want: text + "mismatchPolicy of the configuration is Restart: an adopted pod that starts elsewhere with another address is restarted.\n",
		},
		"no selector": {fails: `adoption.podSelector of the configuration is unknown; select the pods with --selector or --all: read ConfigMap fixedip-system/fixedip-config: configmaps "fixedip-config" not found`},
	} {
		t.Run(name, func(t *testing.T) {
			all := objects
			if c.config != "" {
				all = append(append([]client.Object{}, objects...), configMap(c.config))
			}
			cluster := fakeCluster(t, all...)
			cluster.namespace, c.a.source = "db", source
			report, err := cluster.adoptionReport(t.Context(), c.a)
			if c.fails != "" || err != nil {
				if err == nil || err.Error() != c.fails {
					t.Errorf("got the error %v, want %q", err, c.fails)
				}
				return
			}
			var out strings.Builder
			if err := writeAdoption(&out, report); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, out.String()); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
		})
	}
}

// TestAdoptedFamilies checks that the preview ignores the IPv6 addresses of pods if the configuration has IPv4 addresses only, as
// the controller does.
func TestAdoptedFamilies(t *testing.T) {
	node := pooled(map[string]string{"10.0.1.7": "", "fd00:1::7": "db/x-0 db/StatefulSet/x", "fd00:1::8": ""})
	node.Spec.IPAM.PodCIDRs = append(node.Spec.IPAM.PodCIDRs, "fd00:1::/120")
	run := func(name string, ips ...string) *corev1.Pod {
		return gen.Pod(name, gen.On("node-1", ips...), gen.Running, gen.Controlled("web", "1"), func(p *corev1.Pod) { p.Spec.SchedulerName = "default-scheduler" })
	}
	const bothPools = "subnets: {clusterPools: [{cidr: 10.0.0.0/16}, {cidr: \"fd00::/48\"}]}\n"
	both := []conformance.AdoptedPod{
		{Pod: "db/web-0", Node: "node-1", IPs: []string{"10.0.1.7", "fd00:1::7"}, Outcome: conformance.AdoptionBlocked, Reason: "IP fd00:1::7 on node node-1 belongs to pod db/x-0"},
		{Pod: "db/web-1", Node: "node-1", IPs: []string{"fd00:1::8"}, Outcome: conformance.Adopted},
	}
	ipv4Only := []conformance.AdoptedPod{
		{Pod: "db/web-0", Node: "node-1", IPs: []string{"10.0.1.7", "fd00:1::7"}, Outcome: conformance.Adopted},
		{Pod: "db/web-1", Node: "node-1", IPs: []string{"fd00:1::8"}, Outcome: conformance.AdoptionBlocked, Reason: "the pod runs with fd00:1::8, and the configuration has IPv4 addresses only"},
	}
	for name, c := range map[string]struct {
		config string
		want   []conformance.AdoptedPod
	}{
		"both families":                    {bothPools, both},
		"IPv4 only":                        {bothPools + "ipFamilies: [IPv4]\n", ipv4Only},
		"cluster pools of IPv4 only":       {clusterPools, ipv4Only},
		"the configuration cannot be read": {"", both},
	} {
		t.Run(name, func(t *testing.T) {
			objects := []client.Object{node, run("web-0", "10.0.1.7", "fd00:1::7"), run("web-1", "fd00:1::8")}
			if c.config != "" {
				objects = append(objects, configMap(c.config))
			}
			cluster := fakeCluster(t, objects...)
			cluster.namespace = "db"
			report, err := cluster.adoptionReport(t.Context(), adoption{all: true, source: source})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, report.Pods); diff != "" {
				t.Errorf("outcomes (-want +got):\n%s", diff)
			}
		})
	}
}
