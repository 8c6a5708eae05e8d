package integration

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/witness"
	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

func TestStatefulSetDeleted(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: threeNodes, controllerArgs: defaultPool})
	e.create(statefulSet("web", 6), statefulSet("stays", 2))
	e.awaitRunning(nil, names("web", 6)...)
	stays := e.awaitRunning(nil, names("stays", 2)...)

	e.delete(statefulSet("web", 6), client.PropagationPolicy(metav1.DeletePropagationBackground))
	e.await("wait for web to leave nothing behind", func(rows []witness.Row) bool { return len(rows) == 2 })
	e.must(e.witness.AwaitPools(within(t), func(p witness.Pool) bool { return p.Resting == 0 }))
	for name, r := range e.awaitRunning(nil, names("stays", 2)...) {
		if r.UID != stays[name].UID || r.Address != stays[name].Address {
			t.Errorf("pod %s of another StatefulSet was %+v and is %+v", name, stays[name], r)
		}
	}
}

// A StatefulSet is replaced while its pods go on, as people do to change what can't be changed: the
// addresses stay, and the records follow to the new one.
func TestStatefulSetReplacedAroundItsPods(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: threeNodes, controllerArgs: defaultPool})
	e.create(statefulSet("web", 3))
	before := e.awaitRunning(nil, names("web", 3)...)
	e.delete(statefulSet("web", 3), client.PropagationPolicy(metav1.DeletePropagationOrphan))
	again := statefulSet("web", 3)
	for {
		// The garbage collector lets go of the pods first, and then of the StatefulSet.
		err := e.api.Create(within(t), again)
		if err == nil {
			break
		}
		if !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	for _, name := range names("web", 3) {
		e.awaitRecord(name, func(f *v1alpha1.FixedIP) bool { return f.Spec.Owner.UID == again.UID })
	}
	for name, r := range e.awaitRunning(nil, names("web", 3)...) {
		if r.UID != before[name].UID {
			t.Errorf("pod %s was restarted", name)
		}
	}
	e.deletePods(names("web", 3)...)
	e.sameAddresses(before, e.awaitRunning(before, names("web", 3)...))
}

// Scaling down keeps the addresses for when the pods come back.
func TestScaleDownAndUp(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: threeNodes, controllerArgs: defaultPool})
	e.create(statefulSet("web", 4))
	before := e.awaitRunning(nil, names("web", 4)...)
	scale := func(n string) {
		e.must(e.api.Patch(within(t), statefulSet("web", 0), client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"replicas":`+n+`}}`))))
	}
	scale("1")
	e.await("wait for the others to be kept without pods", func(rows []witness.Row) bool {
		kept := 0
		for _, r := range rows {
			if r.UID == "" && r.Phase == "Reserved" && len(r.Entries) == 1 {
				kept++
			}
		}
		return kept == 3
	})
	scale("4")
	delete(before, "web-0")
	e.sameAddresses(before, e.awaitRunning(before, "web-1", "web-2", "web-3"))
}

// Deleting a FixedIP by hand gives the address up: the pod keeps it as long as it runs, and its
// successor gets another.
func TestFixedIPDeletedByHand(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: []string{"node-1"}, controllerArgs: []string{"--cluster-pool-ipv4-cidr=10.240.0.0/16", "--cool-down=1h"}})
	e.create(statefulSet("web", 2))
	before := e.awaitRunning(nil, names("web", 2)...)
	e.delete(&v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web-0"}})
	e.awaitRecord("web-0", func(f *v1alpha1.FixedIP) bool { return f.Status.Phase == v1alpha1.PhaseReleasing })
	if p := e.witness.Pod(namespace, "web-0"); p == nil || string(p.UID) != before["web-0"].UID {
		t.Error("the pod was touched")
	}
	e.deletePods("web-0")
	after := e.awaitRunning(before, "web-0")["web-0"]
	if after.Address == before["web-0"].Address || after.Address == before["web-1"].Address {
		t.Errorf("web-0 had %s, gave it up, and has %s now", before["web-0"].Address, after.Address)
	}
	if owner, ok := e.witness.Owner("node-1", before["web-0"].Address); !ok || owner != "fixedip.io/released" {
		t.Errorf("the former address %s has the owner %q (%v); it should rest", before["web-0"].Address, owner, ok)
	}
}

// awaitRecord waits for a condition over one FixedIP.
func (e *env) awaitRecord(name string, condition func(*v1alpha1.FixedIP) bool) {
	e.t.Helper()
	e.await("wait for FixedIP "+name, func([]witness.Row) bool {
		fip := e.witness.Record(namespace, name)
		return fip != nil && condition(fip)
	})
}
