// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/test/gen"
)

// TestReserveCommand checks the output of reserve, and the FixedIP that it creates.
func TestReserveCommand(t *testing.T) {
	const next = `What happens next: the controller writes a pool entry for each address, and the pod gets the address when it is placed.
A pod that already runs keeps its current addresses until it is deleted. To wait for the entries:
`
	stateful := v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "new"}
	for name, c := range map[string]struct {
		r       reservation
		ips     []string
		dryRun  bool
		rights  string
		want    result
		created *v1alpha1.FixedIPSpec
	}{
		"of a StatefulSet": {
			r: reservation{pod: "new-0"}, ips: []string{"10.0.1.20"},
			want: result{Out: "FixedIP db/new-0 created: it reserves 10.0.1.20 for pod new-0 of StatefulSet new.\n- The reservation waits: IP 10.0.1.20 on node node-1 may be in use: the Cilium agent has not reported yet which addresses its pods use; it becomes available when the agent has reported and no pod uses it; check the cilium pod of the node.\n" +
				next + "  kubectl -n db wait --for=condition=Allocated fixedip/new-0\n"},
			created: &v1alpha1.FixedIPSpec{IPs: []string{"10.0.1.20"}, PodName: "new-0", Owner: stateful},
		},
		"with the rights of the namespace": {
			r: reservation{pod: "new-0"}, ips: []string{"10.0.1.20"}, rights: "db",
			want: result{Out: "FixedIP db/new-0 created: it reserves 10.0.1.20 for pod new-0 of StatefulSet new.\nNot read:   CiliumNodes (forbidden), FixedIPs of other namespaces (forbidden), pods of other namespaces (forbidden)\n" +
				next + "  kubectl -n db wait --for=condition=Allocated fixedip/new-0\n"},
			created: &v1alpha1.FixedIPSpec{IPs: []string{"10.0.1.20"}, PodName: "new-0", Owner: stateful},
		},
		"of another kind, in other notations": {
			r: reservation{pod: "new-0", workload: "StatefulSet/other"}, ips: []string{"10.9.1.20", "FD00:0::5"},
			want: result{Out: "FixedIP db/new-0 created: it reserves 10.9.1.20, fd00::5 for pod new-0 of StatefulSet other.\n- The reservation waits: IP 10.9.1.20 is in no node's subnet; it becomes available when a node gets a subnet that contains it.\n- The reservation waits: IP fd00::5 is in no node's subnet; it becomes available when a node gets a subnet that contains it.\n" +
				next + "  kubectl -n db wait --for=condition=Allocated fixedip/new-0\n"},
			created: &v1alpha1.FixedIPSpec{IPs: []string{"10.9.1.20", "fd00::5"}, PodName: "new-0", Owner: v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "other"}},
		},
		"of a bare pod, as a dry run": {
			r: reservation{pod: "single", barePod: true}, ips: []string{"10.9.1.20"}, dryRun: true,
			want: result{Out: "FixedIP db/single not created (dry run): it would reserve 10.9.1.20 for pod single.\n- The reservation waits: IP 10.9.1.20 is in no node's subnet; it becomes available when a node gets a subnet that contains it.\n"},
		},
		"of a bare pod": {
			r: reservation{pod: "single", barePod: true}, ips: []string{"10.9.1.20"},
			want: result{Out: "FixedIP db/single created: it reserves 10.9.1.20 for pod single.\n- The reservation waits: IP 10.9.1.20 is in no node's subnet; it becomes available when a node gets a subnet that contains it.\n" +
				next + "  kubectl -n db wait --for=condition=Allocated fixedip/single\n"},
			created: &v1alpha1.FixedIPSpec{IPs: []string{"10.9.1.20"}, PodName: "single", Owner: v1alpha1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "single"}, Reclaim: identity.NamedReclaim()},
		},
		"the address is taken": {
			r: reservation{pod: "new-0"}, ips: []string{"10.0.1.6"},
			want: result{ErrOut: "! 10.0.1.6 is used by pod db/web-0.\n  what helps: choose another address; kubectl fixedip ip shows the use of this one\n! A FixedIP reserves 10.0.1.6 for pod db/web-0.\n  what helps: choose another address; kubectl fixedip ip shows the use of this one\n", Error: "problems found"},
		},
		"the FixedIP exists": {
			r: reservation{pod: "web-0"}, ips: []string{"10.0.1.20"},
			want: result{Error: "FixedIP db/web-0 exists already and reserves 10.0.1.6; release it first (kubectl fixedip release web-0)"},
		},
		"no ordinal": {
			r: reservation{pod: "single"}, ips: []string{"10.0.1.20"},
			want: result{Error: `"single" is not the name of a pod of a StatefulSet, such as web-0; add --for-pod if the pod has no workload, or --workload Kind.group/name`},
		},
		"of a kind with slots": {
			r: reservation{pod: "web-0", workload: "Deployment/web"}, ips: []string{"10.0.1.20"},
			want: result{Error: "--workload: the pods of a Deployment have slots, which have no names before the pods exist; request addresses with the annotation fixedip.io/ips on the workload"},
		},
		"of a kind that is not installed": {
			r: reservation{pod: "web-0", workload: "StatefulSet.apps.kruise.io/web"}, ips: []string{"10.0.1.20"},
			want: result{Error: "--workload: the API server does not serve the kind StatefulSet.apps.kruise.io"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			all := fakeCluster(t, pooled(map[string]string{"10.0.1.6": "db/web-0 db/StatefulSet/web"}), gen.FixedIP("web-0", gen.Owner("web")), gen.Pod("web-0", gen.On("node-1", "10.0.1.6"), gen.Running))
			all.namespace = "db"
			user := all
			if c.rights != "" {
				user = withRightsOf(c.rights, all)
			}
			addrs, err := parseAddresses(c.ips)
			if err != nil {
				t.Fatal(err)
			}
			c.r.addrs = addrs
			streams, out, errOut := streamsFor()
			err = user.reserve(t.Context(), streams, c.r, changes{dryRun: c.dryRun})
			if diff := cmp.Diff(c.want, resultOf(out, errOut, err)); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
			found, err := get(t.Context(), all, "db", c.r.pod, &v1alpha1.FixedIP{})
			switch {
			case err != nil:
				t.Fatal(err)
			case c.created == nil && found != nil && c.r.pod != "web-0":
				t.Errorf("FixedIP %s was created, want none", c.r.pod)
			case c.created != nil && found == nil:
				t.Errorf("FixedIP %s was not created, want it created", c.r.pod)
			case c.created != nil:
				if diff := cmp.Diff(*c.created, found.Spec); diff != "" {
					t.Errorf("spec (-want +got):\n%s", diff)
				}
			}
		})
	}
}

// TestParseAddresses checks the errors of --ip.
func TestParseAddresses(t *testing.T) {
	for text, want := range map[string]string{
		"": "name at least one address", "10.0.1.6,10.0.1.7": "10.0.1.6 and 10.0.1.7 are of the same family; a pod has at most one address of each family",
		"10.0.1.0/24": `"10.0.1.0/24" is a subnet; name one address of it (kubectl fixedip map shows subnets)`,
	} {
		var texts []string
		if text != "" {
			texts = strings.Split(text, ",")
		}
		if _, err := parseAddresses(texts); err == nil || err.Error() != want {
			t.Errorf("%q: got the error %v, want %s", text, err, want)
		}
	}
}
