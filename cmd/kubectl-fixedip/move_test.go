// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/test/gen"
)

// TestMoveCommand checks the output of move, and the failover policy that it sets.
func TestMoveCommand(t *testing.T) {
	const steps = `Next steps:
  kubectl cordon node-1
  kubectl -n db delete pod web-0
  # The scheduler chooses the node: it is sure to be node-2 only if the pod may run on no other node, for example because of spec.affinity.
  kubectl -n db get pod web-0 -o wide --watch
  kubectl uncordon node-1
`
	const stays = "  # The failover policy of StatefulSet web stays Migrate until you change the annotation fixedip.io/failover.\n"
	const inRecord = "  # The failover policy of FixedIP web-0 stays Migrate until you change spec.failover.\n"
	again := strings.Replace(steps, "  # The scheduler", "  # Create pod web-0 again: no controller does that.\n  # The scheduler", 1)
	for name, c := range map[string]struct {
		to     string
		config string
		change func(*v1alpha1.FixedIP)
		gone   bool
		o      changes
		want   result
		// annotation is the failover policy of the StatefulSet afterwards, and policy that of the FixedIP.
		annotation string
		policy     v1alpha1.Failover
	}{
		"the policy is set": {
			to: "node-2", config: "allowAddressMigration: true\n", o: changes{yes: true}, annotation: "Migrate",
			want: result{Out: steps + stays, ErrOut: "The failover policy of StatefulSet db/web is Migrate now.\n"},
		},
		"a dry run": {to: "node-2", config: "allowAddressMigration: true\n", o: changes{dryRun: true}, want: result{Out: steps + stays}},
		"no terminal": {
			to: "node-2", config: "allowAddressMigration: true\n",
			want: result{Error: "cannot ask for confirmation, because the standard input is not a terminal; add --yes to confirm, or --dry-run to see what would change: nothing was changed"},
		},
		"the policy of the configuration": {to: "node-2", config: "allowAddressMigration: true\nfailover: Migrate\n", want: result{Out: steps}},
		"the workload is gone": {
			to: "node-2", gone: true, o: changes{yes: true}, policy: v1alpha1.Migrate,
			want: result{Out: again + inRecord, ErrOut: "The failover policy of FixedIP db/web-0 is Migrate now.\n"},
		},
		"a bare pod": {
			to: "node-2", o: changes{yes: true}, policy: v1alpha1.Migrate,
			change: func(f *v1alpha1.FixedIP) {
				f.Spec.Owner = v1alpha1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "web-0"}
			},
			want: result{Out: again + inRecord, ErrOut: "The failover policy of FixedIP db/web-0 is Migrate now.\n"},
		},
		"not allowed": {
			to: "node-2", config: clusterPools, o: changes{yes: true},
			want: result{Out: "! The configuration does not allow an address to leave the subnet of its node: allowAddressMigration is false.\n  what helps: set allowAddressMigration to true if the routing of the cluster carries single addresses\n", Error: "problems found"},
		},
		"already there": {to: "node-1", o: changes{yes: true}, want: result{Out: "- The pool of node node-1 already has 10.0.1.6.\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			record := gen.FixedIP("web-0", gen.Owner("web"), func(f *v1alpha1.FixedIP) { f.Spec.NodeName = "node-1" })
			if c.change != nil {
				c.change(record)
			}
			other := gen.CiliumNode("node-2", "10.0.2.0/24")
			other.Status.IPAM.Used = map[string]ipamtypes.AllocationIP{"10.0.2.1": {Owner: "router"}}
			objects := []client.Object{pooled(map[string]string{"10.0.1.6": "db/web-0 db/StatefulSet/web"}), other, record, gen.Node("node-1"), gen.Node("node-2"), gen.Pod("web-0", gen.On("node-1", "10.0.1.6"), gen.Running)}
			if c.config != "" {
				objects = append(objects, configMap(clusterPools+strings.TrimPrefix(c.config, clusterPools)))
			}
			if !c.gone {
				objects = append(objects, gen.StatefulSet("db", "web", 1))
			}
			cluster := fakeCluster(t, objects...)
			cluster.namespace = "db"
			streams, out, errOut := streamsFor()
			err := cluster.move(t.Context(), streams, "web-0", c.to, source, c.o)
			if diff := cmp.Diff(c.want, resultOf(out, errOut, err)); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
			after, err := get(t.Context(), cluster, "db", "web-0", &v1alpha1.FixedIP{})
			if err != nil || after.Spec.Failover != c.policy {
				t.Errorf("got the policy %q and the error %v, want %q", after.Spec.Failover, err, c.policy)
			}
			workload, err := get(t.Context(), cluster, "db", "web", &appsv1.StatefulSet{})
			if err != nil || workload != nil && workload.Annotations[identity.AnnotationFailover] != c.annotation {
				t.Errorf("got the workload %v and the error %v, want the annotation %q", workload, err, c.annotation)
			}
		})
	}
}

// TestMoveSubnetCommand checks the output of move subnet/CIDR, and the successor in the NodeSubnet afterwards.
func TestMoveSubnetCommand(t *testing.T) {
	const keeps = "- Node node-1 keeps the subnet 10.0.1.0/24 until the Node is deleted. Node node-2 then gets the subnet at once, with all fixed addresses in it.\n"
	for name, c := range map[string]struct {
		subnet, to string
		o          changes
		want       result
		successor  string
	}{
		"by CIDR":                       {"10.0.1.0/24", "node-2", changes{yes: true}, result{Out: "NodeSubnet 10-0-1-0-24: the successor is node node-2\n", ErrOut: keeps}, "node-2"},
		"by name":                       {"10-0-1-0-24", "node-2", changes{yes: true}, result{Out: "NodeSubnet 10-0-1-0-24: the successor is node node-2\n", ErrOut: keeps}, "node-2"},
		"a dry run":                     {"10.0.1.0/24", "node-2", changes{dryRun: true}, result{Out: keeps}, ""},
		"no terminal":                   {"10.0.1.0/24", "node-2", changes{}, result{ErrOut: keeps, Error: "cannot ask for confirmation, because the standard input is not a terminal; add --yes to confirm, or --dry-run to see what would change: nothing was changed"}, ""},
		"the node that has the subnet":  {"10.0.1.0/24", "node-1", changes{yes: true}, result{Out: "- Node node-1 already has the subnet 10.0.1.0/24.\n"}, ""},
		"a subnet without a NodeSubnet": {"10.0.9.0/24", "node-2", changes{yes: true}, result{Error: "NodeSubnet 10-0-9-0-24 does not exist; kubectl get nodesubnets lists the subnets"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			ns := &v1alpha1.NodeSubnet{ObjectMeta: metav1.ObjectMeta{Name: "10-0-1-0-24"}, Spec: v1alpha1.NodeSubnetSpec{CIDR: "10.0.1.0/24", NodeName: "node-1"}}
			cluster := fakeCluster(t, ns, gen.Node("node-1"), gen.Node("node-2"))
			streams, out, errOut := streamsFor()
			err := cluster.moveSubnet(t.Context(), streams, c.subnet, c.to, c.o)
			if diff := cmp.Diff(c.want, resultOf(out, errOut, err)); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
			after, err := get(t.Context(), cluster, "", ns.Name, &v1alpha1.NodeSubnet{})
			if err != nil || after.Spec.Successor != c.successor {
				t.Errorf("got the successor %q and the error %v, want %q", after.Spec.Successor, err, c.successor)
			}
		})
	}
}
