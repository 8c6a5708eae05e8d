package integration

import (
	"fmt"
	"slices"
	"testing"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/product"
	"fixedip.io/fixedip/hack/witness"
	"fixedip.io/fixedip/ipam/core/pool"
)

// G24: a fresh address is not used again at once. Addresses are taken from the top; one that was given
// back rests, for an hour here: it is passed over while another is free, and when none is, that which
// rests longest is taken. One that has rested is as good as any.
func TestG24Rotation(t *testing.T) {
	t.Parallel()
	// A node with room for three fixed addresses. Its agent is slow to report, so that it still lists an
	// address when that is given back: one that it never listed is nobody's until it has cooled down.
	e := start(t, options{controllerArgs: []string{
		"--cluster-pool-ipv4-cidr=10.240.0.0/29", "--cluster-pool-ipv4-mask-size=29", "--min-free-ips=2", "--max-dynamic-ips=3", "--address-cooldown=1h",
	}})
	e.startNode("node-1", "--update-rate=4s")
	e.must(e.WaitNodeReady(e.whileAllRun(), "node-1"))
	e.must(e.witness.AwaitPools(within(t), func(p witness.Pool) bool { return p.Dynamic == 3 }))
	running := 0
	place := func(name, want string) {
		t.Helper()
		e.create(statefulSet(name, 1))
		if r := e.awaitRunning(nil, name+"-0")[name+"-0"]; r.Address != want {
			t.Fatalf("%s-0 has %s, want %s", name, r.Address, want)
		}
		running++
		e.must(e.witness.AwaitPools(within(t), func(p witness.Pool) bool { return p.Used == 2+running }))
	}
	gone := func(name string) {
		t.Helper()
		running--
		e.delete(statefulSet(name, 1), client.PropagationPolicy(metav1.DeletePropagationBackground))
		e.await("wait for "+name+"-0 to leave nothing behind", func(rows []witness.Row) bool {
			return !slices.ContainsFunc(rows, func(r witness.Row) bool { return r.Pod == name+"-0" })
		})
	}
	place("a", "10.240.0.6")
	place("b", "10.240.0.5")
	gone("a")
	place("c", "10.240.0.4")
	gone("b")
	resting := []string{"10.240.0.6", "10.240.0.5"}
	var cn ciliumv2.CiliumNode
	e.must(e.api.Get(within(t), client.ObjectKey{Name: "node-1"}, &cn))
	// Of two that were released within one second, which is all that the marks tell, the lower goes first.
	released := func(ip string) time.Time {
		e := cn.Spec.IPAM.Pool[ip]
		at, ok := pool.Entry{Owner: e.Owner, Resource: e.Resource}.ReleasedAt()
		if !ok {
			t.Fatalf("%s does not rest: %+v", ip, e)
		}
		return at
	}
	if released(resting[0]).Equal(released(resting[1])) {
		slices.Sort(resting)
	}
	place("d", resting[0])
	place("e", resting[1])

	// The cool-down is over for all that rests, and what was taken from c is the highest that is free.
	gone("c")
	gone("d")
	e.must(e.controller.Terminate(within(t)))
	e.startController("cooled", "--cluster-pool-ipv4-cidr=10.240.0.0/29", "--cluster-pool-ipv4-mask-size=29", "--min-free-ips=2", "--max-dynamic-ips=3", "--address-cooldown=1s")
	e.must(e.witness.AwaitPools(within(t), func(p witness.Pool) bool { return p.Resting == 0 && p.Used == 2+running }))
	free := []string{"10.240.0.4", resting[0]}
	slices.Sort(free)
	place("f", free[1])
}

// How much the free addresses of a node count beside its free CPU is said in the configuration.
func TestScoreWeight(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: []string{"node-1", "node-2"}, noScheduler: true, controllerArgs: []string{
		"--cluster-pool-ipv4-cidr=10.240.0.0/24", "--cluster-pool-ipv4-mask-size=27", "--min-free-ips=2", "--max-dynamic-ips=4", "--address-cooldown=2s",
	}})
	// Many addresses of node-1 are kept, and most of the CPU of node-2 is taken.
	var cn ciliumv2.CiliumNode
	e.must(e.api.Get(within(t), client.ObjectKey{Name: "node-1"}, &cn))
	base := cn.Spec.IPAM.PodCIDRs[0]
	var prefix, first int
	if _, err := fmt.Sscanf(base, "10.240.%d.%d/27", &prefix, &first); err != nil {
		t.Fatal(err)
	}
	for i := range 12 {
		name := fmt.Sprintf("kept-%d", i)
		e.create(beforehand("kept", name, fmt.Sprintf("10.240.%d.%d", prefix, first+10+i)))
	}
	busy := statefulSet("busy", 1, needing("7"), onTemplate("fixedip.io/enabled", "false"), func(s *appsv1.StatefulSet) {
		s.Spec.Template.Spec.NodeName = "node-2"
	})
	e.create(busy)
	e.await("wait for busy-0 to run", func(rows []witness.Row) bool {
		return slices.ContainsFunc(rows, func(r witness.Row) bool { return r.Pod == "busy-0" && r.Running })
	})

	// One scheduler after the other, with another weight.
	for _, c := range []struct {
		weight int
		want   string
	}{{1, "node-1"}, {50, "node-2"}} {
		name := fmt.Sprintf("weight-%d", c.weight)
		p := e.startScheduler(name, product.SchedulerOptions{Weight: c.weight})
		e.create(statefulSet(name, 1))
		if r := e.awaitRunning(nil, name+"-0")[name+"-0"]; r.Node != c.want {
			t.Errorf("with weight %d the pod is on %s, want %s", c.weight, r.Node, c.want)
		}
		e.must(p.Terminate(within(t)))
	}
}

// needing is a change of the CPU that a StatefulSet's pods ask for.
func needing(cpu string) func(*appsv1.StatefulSet) {
	return func(s *appsv1.StatefulSet) {
		s.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	}
}

// A pod whose node is full preempts there as any pod would, and has its address again.
func TestPreemption(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: []string{"node-1", "node-2"}, controllerArgs: defaultPool})
	e.create(&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 1000})
	high := func(s *appsv1.StatefulSet) { s.Spec.Template.Spec.PriorityClassName = "high" }
	e.create(statefulSet("web", 1, needing("5"), high))
	before := e.awaitRunning(nil, "web-0")
	scale := func(n string) {
		e.must(e.api.Patch(within(t), statefulSet("web", 0), client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"replicas":`+n+`}}`))))
	}
	scale("0")
	e.await("wait for web-0 to go", func(rows []witness.Row) bool { return len(rows) == 1 && rows[0].UID == "" })
	// By node selector and not by a controller, which would make it again.
	filler := aPod("filler")
	filler.Spec = statefulSet("filler", 1, needing("5")).Spec.Template.Spec
	filler.Spec.NodeSelector = map[string]string{corev1.LabelHostname: before["web-0"].Node}
	e.create(filler)
	e.await("wait for filler to run", func(rows []witness.Row) bool {
		return slices.ContainsFunc(rows, func(r witness.Row) bool { return r.Pod == "filler" && r.Running })
	})
	scale("1")
	e.sameAddresses(before, e.awaitRunning(before, "web-0"))
	e.await("wait for filler to go", func(rows []witness.Row) bool { return len(rows) == 1 })
}
