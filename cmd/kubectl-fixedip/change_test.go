// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/explain"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/test/gen"
)

// nameInto returns a function that adds the name of an object to names.
func nameInto(names *[]string) func(runtime.Object) error {
	return func(o runtime.Object) error {
		*names = append(*names, o.(client.Object).GetName())
		return nil
	}
}

// streamsFor returns streams with an input that is no terminal, and the buffers of the output and of the errors.
func streamsFor() (streams genericiooptions.IOStreams, out, errOut *strings.Builder) {
	out, errOut = &strings.Builder{}, &strings.Builder{}
	return genericiooptions.IOStreams{In: strings.NewReader(""), Out: out, ErrOut: errOut}, out, errOut
}

// result is what a command does: its output and the text of its error.
type result struct{ Out, ErrOut, Error string }

func resultOf(out, errOut *strings.Builder, err error) result {
	r := result{Out: out.String(), ErrOut: errOut.String()}
	if err != nil {
		r.Error = err.Error()
	}
	return r
}

const source = configurationSource("fixedip-system/fixedip-config")

// TestReserveCommand compares the output of reserve, and checks the FixedIP that it creates.
func TestReserveCommand(t *testing.T) {
	const next = `What happens next: the controller writes the entry, and the pod gets the address when it is placed. A pod that
runs already keeps its address until it is deleted. To wait for the entry:
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
			want: result{Out: "FixedIP db/single not created (dry run): it reserves 10.9.1.20 for pod single of Pod single.\n- The reservation waits: IP 10.9.1.20 is in no node's subnet; it becomes available when a node gets a subnet that contains it.\n" +
				next + "  kubectl -n db wait --for=condition=Allocated fixedip/single\n"},
		},
		"of a bare pod": {
			r: reservation{pod: "single", barePod: true}, ips: []string{"10.9.1.20"},
			want: result{Out: "FixedIP db/single created: it reserves 10.9.1.20 for pod single of Pod single.\n- The reservation waits: IP 10.9.1.20 is in no node's subnet; it becomes available when a node gets a subnet that contains it.\n" +
				next + "  kubectl -n db wait --for=condition=Allocated fixedip/single\n"},
			created: &v1alpha1.FixedIPSpec{IPs: []string{"10.9.1.20"}, PodName: "single", Owner: v1alpha1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "single"}, Reclaim: identity.NamedReclaim()},
		},
		"the address is taken": {
			r: reservation{pod: "new-0"}, ips: []string{"10.0.1.6"},
			want: result{ErrOut: "! 10.0.1.6 is used by pod db/web-0.\n  what helps: choose another address; kubectl fixedip ip shows who has this one\n! A FixedIP reserves 10.0.1.6 for pod db/web-0.\n  what helps: choose another address; kubectl fixedip ip shows who has this one\n", Error: "problems found"},
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
				t.Errorf("FixedIP %s was created", c.r.pod)
			case c.created != nil && found == nil:
				t.Errorf("FixedIP %s was not created", c.r.pod)
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

// TestReleaseCommand compares the output of release, and checks what it deletes.
func TestReleaseCommand(t *testing.T) {
	const plan = "FixedIP db/web-0: 10.0.1.6\n  Pod db/web-0 on node node-1 keeps 10.0.1.6 and runs on. When the pod is deleted, 10.0.1.6 is released; until then the FixedIP is in deletion.\n  StatefulSet web exists: the next pod web-0 gets another address.\n" +
		"FixedIP db/web-1: 10.0.1.7\n  Pod db/web-1 does not exist. 10.0.1.7 is released, and available to other pods after the cooldown.\n  StatefulSet web exists: the next pod web-1 gets another address.\n"
	for name, c := range map[string]struct {
		names   []string
		restart bool
		o       changes
		want    result
		// left are the pods and FixedIPs that exist afterwards.
		left string
	}{
		"no terminal": {
			names: []string{"web-0", "web-1"},
			want:  result{ErrOut: plan, Error: "the input is no terminal: use --yes to confirm, or --dry-run: nothing was changed"}, left: "web-0 web-0 web-1",
		},
		"a dry run": {
			names: []string{"web-0", "web-1"}, o: changes{dryRun: true},
			want: result{Out: plan + "Dry run: nothing was changed.\n"}, left: "web-0 web-0 web-1",
		},
		"confirmed": {
			names: []string{"web-0", "web-1"}, o: changes{yes: true},
			want: result{ErrOut: plan, Out: "FixedIP db/web-0 deleted\nFixedIP db/web-1 deleted\n"}, left: "web-0",
		},
		"with the pod": {
			names: []string{"web-0"}, o: changes{yes: true}, restart: true,
			want: result{
				ErrOut: "FixedIP db/web-0: 10.0.1.6\n  Pod db/web-0 on node node-1 is deleted. When it has stopped, 10.0.1.6 is released.\n  StatefulSet web exists: the next pod web-0 gets another address.\n",
				Out:    "FixedIP db/web-0 deleted\nPod db/web-0 deleted\n",
			}, left: "web-1",
		},
		"as JSON": {
			names: []string{"web-1"}, o: changes{dryRun: true, output: inJSON},
			want: result{Out: `{
  "items": [
    {
      "fixedIP": "db/web-1",
      "ips": [
        "10.0.1.7"
      ],
      "effects": [
        "Pod db/web-1 does not exist. 10.0.1.7 is released, and available to other pods after the cooldown.",
        "StatefulSet web exists: the next pod web-1 gets another address."
      ],
      "released": false
    }
  ]
}
`}, left: "web-0 web-0 web-1",
		},
		"one does not exist": {
			names: []string{"web-0", "absent"}, o: changes{yes: true},
			want: result{Error: "FixedIP db/absent does not exist; kubectl fixedip get lists FixedIPs"}, left: "web-0 web-0 web-1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			second := gen.FixedIP("web-1", gen.Owner("web"), func(f *v1alpha1.FixedIP) { f.Spec.IPs, f.UID = []string{"10.0.1.7"}, "uid-1" })
			first := gen.FixedIP("web-0", gen.Owner("web"), func(f *v1alpha1.FixedIP) { f.UID = "uid-0" })
			cluster := fakeCluster(t, first, second, gen.Pod("web-0", gen.On("node-1", "10.0.1.6"), gen.Running, gen.Controlled("web", "1")), gen.StatefulSet("db", "web", 2))
			cluster.namespace = "db"
			streams, out, errOut := streamsFor()
			plans, err := cluster.planRelease(t.Context(), c.names, c.restart)
			if err == nil {
				err = cluster.releaseAll(t.Context(), streams, plans, c.restart, c.o)
			}
			if diff := cmp.Diff(c.want, resultOf(out, errOut, err)); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
			var left []string
			for _, list := range []client.ObjectList{&corev1.PodList{}, &v1alpha1.FixedIPList{}} {
				if err := cluster.api.List(t.Context(), list); err != nil {
					t.Fatal(err)
				}
				if err := meta.EachListItem(list, nameInto(&left)); err != nil {
					t.Fatal(err)
				}
			}
			if got := strings.Join(left, " "); got != c.left {
				t.Errorf("left are %s, want %s", got, c.left)
			}
		})
	}
}

// TestReleaseOfAnotherPod checks that release does not delete a pod that was created again after the user saw the plan.
func TestReleaseOfAnotherPod(t *testing.T) {
	cluster := fakeCluster(t, gen.FixedIP("web-0", gen.Owner("web")), gen.Pod("web-0", gen.On("node-1", "10.0.1.6"), gen.Running))
	cluster.namespace = "db"
	plans, err := cluster.planRelease(t.Context(), []string{"web-0"}, true)
	if err != nil {
		t.Fatal(err)
	}
	plans[0].pod.UID = "uid-of-an-earlier-pod"
	// The fake API server ignores the precondition.
	cluster.api = interceptor.NewClient(cluster.api.(client.WithWatch), interceptor.Funcs{Delete: func(ctx context.Context, api client.WithWatch, o client.Object, options ...client.DeleteOption) error {
		var given client.DeleteOptions
		given.ApplyOptions(options)
		now := o.DeepCopyObject().(client.Object)
		if err := api.Get(ctx, client.ObjectKeyFromObject(o), now); err != nil {
			return err
		}
		if given.Preconditions == nil || given.Preconditions.UID == nil || *given.Preconditions.UID != now.GetUID() {
			return apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, o.GetName(), errors.New("the UID differs"))
		}
		return api.Delete(ctx, o, options...)
	}})
	streams, _, _ := streamsFor()
	const want = "delete pod db/web-0: another object has this name now, and was not deleted; run the command again: "
	if err := cluster.releaseAll(t.Context(), streams, plans, true, changes{yes: true}); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got the error %v, want %s", err, want)
	}
	if pod, err := get(t.Context(), cluster, "db", "web-0", &corev1.Pod{}); err != nil || pod == nil {
		t.Errorf("got the pod %v and the error %v, want the pod", pod, err)
	}
}

// TestAnswer checks which answers confirm a change.
func TestAnswer(t *testing.T) {
	for answer, confirmed := range map[string]bool{"y\n": true, "Yes\n": true, "y": true, "n\n": false, "\n": false, "": false, "yep\n": false} {
		if err := readAnswer(strings.NewReader(answer)); (err == nil) != confirmed || err != nil && !errors.Is(err, errDeclined) {
			t.Errorf("answer %q: got the error %v, want a confirmation: %v", answer, err, confirmed)
		}
	}
}

// TestMoveCommand compares the output of move, and checks the policy that it sets.
func TestMoveCommand(t *testing.T) {
	const steps = `Next steps:
  kubectl cordon node-1
  kubectl -n db delete pod web-0
  # The scheduler chooses the node: it is sure to be node-2 only if the pod may run on no other node, for example because of spec.affinity.
  kubectl -n db get pod web-0 -o wide --watch
  kubectl uncordon node-1
`
	const stays = "  # The failover policy of StatefulSet web stays Migrate until you change the annotation fixedip.io/failover.\n"
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
			want: result{Error: "the input is no terminal: use --yes to confirm, or --dry-run: nothing was changed"},
		},
		"the policy of the configuration": {to: "node-2", config: "allowAddressMigration: true\nfailover: Migrate\n", want: result{Out: steps}},
		"the workload is gone": {
			to: "node-2", gone: true, o: changes{yes: true}, policy: v1alpha1.Migrate,
			want: result{Out: steps + stays, ErrOut: "The failover policy of StatefulSet db/web is Migrate now.\n"},
		},
		"a bare pod": {
			to: "node-2", o: changes{yes: true}, policy: v1alpha1.Migrate,
			change: func(f *v1alpha1.FixedIP) {
				f.Spec.Owner = v1alpha1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "web-0"}
			},
			want: result{Out: steps + "  # The failover policy of FixedIP web-0 stays Migrate until you change spec.failover.\n", ErrOut: "The failover policy of FixedIP db/web-0 is Migrate now.\n"},
		},
		"not allowed": {
			to: "node-2", config: clusterPools, o: changes{yes: true},
			want: result{Out: "! The configuration does not allow that an address leaves the subnet of its node: allowAddressMigration is false.\n  what helps: set allowAddressMigration to true if the routing of the cluster carries single addresses\n", Error: "problems found"},
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

// TestMoveSubnetCommand compares the output of move subnet/CIDR, and checks the successor that it names.
func TestMoveSubnetCommand(t *testing.T) {
	const keeps = "- Node node-1 keeps the subnet 10.0.1.0/24 as long as it exists. When it is deleted, node node-2 gets the subnet at once, with all fixed addresses in it.\n"
	for name, c := range map[string]struct {
		subnet, to string
		o          changes
		want       result
		successor  string
	}{
		"by CIDR":      {"10.0.1.0/24", "node-2", changes{yes: true}, result{Out: "NodeSubnet 10-0-1-0-24: the successor is node node-2\n", ErrOut: keeps}, "node-2"},
		"by name":      {"10-0-1-0-24", "node-2", changes{yes: true}, result{Out: "NodeSubnet 10-0-1-0-24: the successor is node node-2\n", ErrOut: keeps}, "node-2"},
		"a dry run":    {"10.0.1.0/24", "node-2", changes{dryRun: true}, result{Out: keeps}, ""},
		"no terminal":  {"10.0.1.0/24", "node-2", changes{}, result{ErrOut: keeps, Error: "the input is no terminal: use --yes to confirm, or --dry-run: nothing was changed"}, ""},
		"its own node": {"10.0.1.0/24", "node-1", changes{yes: true}, result{Out: "- Node node-1 already has the subnet 10.0.1.0/24.\n"}, ""},
		"absent":       {"10.0.9.0/24", "node-2", changes{yes: true}, result{Error: "NodeSubnet 10-0-9-0-24 does not exist; kubectl get nodesubnets lists the subnets"}, ""},
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

// TestAdoptCommand compares the output of adopt --preview.
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
db          web-3   -        -           AdoptedLater   the pod does not run with an IP: its phase is Pending

Pods: 5; restarts: 0
  1 keep their current addresses as fixed addresses
  1 have fixed addresses already
  1 are selected, and adopted when they run with an address
  1 are selected, but cannot be adopted
  1 are not concerned

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
		"no selector": {fails: `name the pods with --selector or --all: read ConfigMap fixedip-system/fixedip-config: configmaps "fixedip-config" not found`},
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

// TestChangesWithoutClusterOrRights checks that every command that changes objects ends with one error and exit code 2, if Cilium and
// fixedip are not installed, the user has no rights, or there is no API server.
func TestChangesWithoutClusterOrRights(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for world, server := range map[string]string{
		"forbidden": answering(t, http.StatusForbidden, "Forbidden", "not allowed").URL,
		"missing":   answering(t, http.StatusNotFound, "NotFound", "the server could not find the requested resource").URL,
		"no server": gone.URL,
	} {
		for _, args := range [][]string{
			{"reserve", "web-0", "--ip=10.0.0.1"}, {"release", "web-0", "--yes"}, {"move", "web-0", "--to=node-2", "--yes"},
			{"move", "subnet/10.0.0.0/24", "--to=node-2", "--yes"}, {"adopt", "--preview", "--all"},
		} {
			t.Run(world+" "+strings.Join(args, " "), func(t *testing.T) {
				out, errOut, code := run(t, server, args...)
				if code != 2 || out != "" || strings.Count(errOut, "Error: ") != 1 || strings.Contains(errOut, "panic") {
					t.Errorf("exit code %d, output %q, errors %q, want one error and exit code 2", code, out, errOut)
				}
			})
		}
	}
}

// TestFlagsOfChanges checks the errors of arguments that are wrong.
func TestFlagsOfChanges(t *testing.T) {
	for args, want := range map[string]string{
		"reserve web-0":        "--ip: name at least one address",
		"reserve":              "name exactly one pod",
		"reserve web-0 --ip=x": "--ip: ",
		"reserve w --ip=10.0.0.1 --for-pod --workload=a/b": "if any flags in the group [workload for-pod] are set none of the others can be",
		"release":                            "name at least one FixedIP",
		"move web-0":                         "--to is missing: name the node",
		"move":                               "name exactly one FixedIP, or subnet/CIDR",
		"adopt":                              "add --preview: to adopt pods, set adoption.podSelector in the configuration of fixedip",
		"adopt --preview --all --selector=a": "if any flags in the group [selector all] are set none of the others can be",
		"check --dry-run":                    "--dry-run needs --fix",
		"check --mismatch-policy=restart":    "--mismatch-policy: ",
		"ip 10.0.0.0/24":                     `"10.0.0.0/24" is a subnet; name one address of it (kubectl fixedip map shows subnets)`,
		"explain web-0 -o xml":               `--output: "xml" is not a format; write json or yaml`,
	} {
		_, errOut, code := run(t, "http://127.0.0.1:1", strings.Fields(args)...)
		if code != 2 || !strings.Contains(errOut, want) {
			t.Errorf("%s: exit code %d and errors %q, want 2 and %q", args, code, errOut, want)
		}
	}
}

// TestReportsAsJSON compares reports in JSON and YAML.
func TestReportsAsJSON(t *testing.T) {
	drain := drainReport{Node: "node-1", Pods: []explain.DrainedPod{{Pod: "db/web-0", IPs: []string{"10.0.1.6"}, Policy: "Wait", Waits: true, AfterEviction: "waits", Budgets: []string{"db/web"}}}, Report: listed(explain.Report{Waits: true})}
	plan := explain.MovePlan{Report: listed(explain.Report{}), SetsPolicy: true, Steps: []string{"kubectl cordon node-1"}}
	for name, c := range map[string]struct {
		value any
		want  string
	}{
		"explain": {listed(explain.Report{Facts: []explain.Fact{{What: "Pod", Is: "db/web-0"}}, Findings: []explain.Finding{{Wrong: true, Text: "x", Help: "y"}}}),
			"facts:\n- is: db/web-0\n  what: Pod\nfindings:\n- help: \"y\"\n  text: x\n  wrong: true\n"},
		"nothing": {listed(explain.Report{}), "findings: []\n"},
		"drain":   {drain, "findings: []\nnode: node-1\npods:\n- afterEviction: waits\n  budgets:\n  - db/web\n  ips:\n  - 10.0.1.6\n  pod: db/web-0\n  policy: Wait\n  waits: true\nwaits: true\n"},
		"move":    {plan, "findings: []\nsetsPolicy: true\nsteps:\n- kubectl cordon node-1\n"},
	} {
		var out strings.Builder
		if err := write(&out, inYAML, c.value, nil); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, out.String()); diff != "" {
			t.Errorf("%s: YAML (-want +got):\n%s", name, diff)
		}
	}
}
