// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/hack/witness"
	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/reservation"
)

// in returns an address in the IPv4 subnet of a node, which must be a /24. end is the last byte of the address.
func (e *env) in(node, end string) string {
	e.t.Helper()
	var cn ciliumv2.CiliumNode
	e.must(e.api.Get(within(e.t), client.ObjectKey{Name: node}, &cn))
	subnet := netip.MustParsePrefix(cn.Spec.IPAM.PodCIDRs[0])
	base := subnet.Addr().String()
	return base[:strings.LastIndex(base, ".")+1] + end
}

// onTemplate sets the annotations of the template of a StatefulSet. pairs are keys and values.
func onTemplate(pairs ...string) func(*appsv1.StatefulSet) {
	return func(s *appsv1.StatefulSet) { s.Spec.Template.Annotations = annotations(pairs) }
}

func annotations(pairs []string) map[string]string {
	out := map[string]string{}
	for p := range slices.Chunk(pairs, 2) {
		out[p[0]] = p[1]
	}
	return out
}

// beforehand returns a FixedIP like one that a user creates before its pod.
func beforehand(workload, pod string, ips ...string) *v1alpha1.FixedIP {
	return &v1alpha1.FixedIP{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pod},
		Spec:       v1alpha1.FixedIPSpec{IPs: ips, PodName: pod, Owner: v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: workload}},
	}
}

// annotate sets one annotation of an existing object.
func (e *env) annotate(o client.Object, key, value string) {
	e.t.Helper()
	e.must(e.api.Patch(within(e.t), o, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, key, value))))
}

func aPod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

// TestG11Annotations checks that annotations decide whether a pod has a fixed address, and which address (G11).
func TestG11Annotations(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: threeNodes, controllerArgs: defaultPool})
	// The pod of another scheduler gets its entry after its bind.
	e.witness.AnyOrder()
	e.part("opted in and out", (*env).optedInAndOut)
	e.part("requested addresses", (*env).requestedAddresses)
	e.part("bare pods", (*env).barePods)
}

// barePods checks bare pods that request an address or have the annotation that enables a fixed address. Each has the same
// address after it is created again, and the address stays reserved until then. With when-deleted Delete the address is
// released. A bare pod without annotations has no fixed address.
func (e *env) barePods() {
	barePod := func(name string, pairs ...string) *corev1.Pod {
		pod := unreservedPod(name, "fixedip-scheduler", "")
		pod.Annotations = annotations(pairs)
		return pod
	}
	requested := map[string]string{"calico": e.in("node-2", "90"), "ours": e.in("node-3", "91"), "several": e.in("node-1", "93")}
	pods := func() []client.Object {
		return []client.Object{
			barePod("calico", "cni.projectcalico.org/ipAddrs", `["`+requested["calico"]+`"]`), barePod("ours", "fixedip.io/ips", requested["ours"]),
			barePod("several", "fixedip.io/ips", e.in("node-1", "92")+"-"+e.in("node-1", "93")), barePod("any", "fixedip.io/enabled", "true"),
			barePod("none"), barePod("released", "fixedip.io/enabled", "true", "fixedip.io/when-deleted", "Delete"),
		}
	}
	e.create(pods()...)
	retained := []string{"calico", "ours", "several", "any"}
	before := e.awaitRunning(nil, append(retained, "released")...)
	for name, address := range requested {
		if before[name].Address != address {
			e.t.Errorf("pod %s has %s, want the requested address %s", name, before[name].Address, address)
		}
	}
	if e.awaitPods("none"); len(e.witness.Entries(namespace, "none")) > 0 {
		e.t.Errorf("pod none, which has no annotation, has the entries %v, want none", e.witness.Entries(namespace, "none"))
	}
	all := append(retained, "released", "none")
	e.deletePods(all...)
	e.awaitGone(all...)
	for _, name := range retained {
		e.awaitRecord(name, func(f *v1alpha1.FixedIP) bool {
			return reservation.StateOf(f) == reservation.Reserved && f.Spec.Owner.Kind == "Pod" && slices.Equal(e.witness.Entries(namespace, name), before[name].Entries)
		})
	}
	e.await("wait for the address of pod released to be released", func(rows []witness.Row) bool {
		return !slices.ContainsFunc(rows, func(r witness.Row) bool { return r.Pod == "released" })
	})
	e.create(pods()...)
	e.sameAddresses(only(before, retained...), e.awaitRunning(before, retained...))
}

func (e *env) optedInAndOut() {
	const enabled = "fixedip.io/enabled"
	otherScheduler := func(s *appsv1.StatefulSet) {
		s.Spec.Template.Spec.SchedulerName, s.Spec.Template.Spec.NodeName = "default-scheduler", "node-2"
	}
	all := []*appsv1.StatefulSet{
		statefulSet("out", 1, onTemplate(enabled, "false")), statefulSet("in", 1, onTemplate(enabled, "true")),
		statefulSet("unset", 1), statefulSet("wrong", 1, onTemplate(enabled, "yes please")),
		statefulSet("other-out", 1, otherScheduler, onTemplate(enabled, "false")), statefulSet("other-in", 1, otherScheduler, onTemplate(enabled, "true")),
		statefulSet("other-unset", 1, otherScheduler),
	}
	for _, s := range all {
		e.create(s)
	}
	before := e.awaitRunning(nil, "in-0", "unset-0", "other-in-0")
	without := []string{"out-0", "other-out-0", "other-unset-0"}
	e.awaitPods(without...)
	for _, r := range e.witness.State(namespace) {
		if slices.Contains(without, r.Pod) && len(r.Entries)+len(r.State) > 0 {
			e.t.Errorf("pod %s has a FixedIP or entries, want neither: %+v", r.Pod, r)
		}
	}
	e.podMessage("wrong-0", `annotation fixedip.io/enabled of pod default/wrong-0 is "yes please"; write "true" or "false"`)

	// The pod is placed after its annotation is corrected.
	e.annotate(aPod("wrong-0"), enabled, "true")
	e.awaitRunning(nil, "wrong-0")
	e.deletePods("in-0", "unset-0", "other-in-0")
	e.sameAddresses(before, e.awaitRunning(before, "in-0", "unset-0", "other-in-0"))
	for _, s := range all {
		e.delete(s, client.PropagationPolicy(metav1.DeletePropagationBackground))
	}
	e.await("wait for all pods, FixedIPs and entries to be deleted", nothingLeft)
}

// requestedAddresses checks for each way to request addresses that the pods get the addresses, have FixedIPs with them, and
// have the same addresses after a restart.
func (e *env) requestedAddresses() {
	const ips, by = "fixedip.io/ips", "fixedip.io/ips-assignment"

	// These FixedIPs exist before their StatefulSet, which must not count as deleted.
	e.create(beforehand("early", "early-0", e.in("node-1", "90")), beforehand("early", "early-1"))
	e.awaitRecord("early-0", func(f *v1alpha1.FixedIP) bool { return reservation.StateOf(f) == reservation.Reserved })

	e.create(
		statefulSet("early", 2),
		statefulSet("single", 2, onTemplate(ips, e.in("node-2", "50")+", "+e.in("node-1", "50"))),
		statefulSet("range", 3, onTemplate(ips, e.in("node-1", "60")+"-"+e.in("node-1", "69")), func(s *appsv1.StatefulSet) {
			s.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: 5}
		}),
		statefulSet("set", 3, onTemplate(ips, e.in("node-3", "128")+"/29", by, "any")),
		statefulSet("whole", 2, func(s *appsv1.StatefulSet) { s.Annotations = map[string]string{ips: e.in("node-2", "70") + "/31"} }),
		statefulSet("calico", 1, onTemplate("cni.projectcalico.org/ipAddrs", fmt.Sprintf("[%q]", e.in("node-3", "80")))),
	)
	want := map[string]string{
		"early-0":  e.in("node-1", "90"),
		"single-0": e.in("node-2", "50"), "single-1": e.in("node-1", "50"),
		"range-5": e.in("node-1", "60"), "range-6": e.in("node-1", "61"), "range-7": e.in("node-1", "62"),
		"whole-0": e.in("node-2", "70"), "whole-1": e.in("node-2", "71"),
		"calico-0": e.in("node-3", "80"),
	}
	set := names("set", 3)
	all := slices.Concat(slices.Sorted(maps.Keys(want)), set, []string{"early-1"})
	before := e.awaitRunning(nil, all...)
	for name, address := range want {
		if before[name].Address != address {
			e.t.Errorf("pod %s has %s, want the requested address %s", name, before[name].Address, address)
		}
	}
	var got []string
	for _, name := range set {
		got = append(got, before[name].Address)
	}
	slices.Sort(got)
	if highest := []string{e.in("node-3", "132"), e.in("node-3", "133"), e.in("node-3", "134")}; !slices.Equal(got, highest) {
		e.t.Errorf("the pods of a StatefulSet that requests a set of addresses have %v, want %v", got, highest)
	}
	for _, name := range []string{"early-0", "early-1"} {
		e.awaitRecord(name, func(f *v1alpha1.FixedIP) bool {
			return f.Spec.NodeName == before[name].Node && slices.Equal(f.Spec.IPs, []string{before[name].Address}) && f.Spec.Owner.UID != "" && len(f.Finalizers) == 1
		})
	}

	// An existing address takes precedence over a request, so that a new request changes nothing.
	e.annotate(statefulSet("whole", 2), ips, e.in("node-3", "200")+"/31")
	e.deletePods(all...)
	e.sameAddresses(before, e.awaitRunning(before, all...))
}

// TestRequestedAddressUnavailable checks that a pod reports why a requested address is not available, and is placed as soon
// as the address is available or the request changes. This shows that the plugin requeues the pod. Without an event,
// kube-scheduler tries an unschedulable pod again only after five minutes, which is longer than the time limit of a step.
func TestRequestedAddressUnavailable(t *testing.T) {
	t.Parallel()
	e := start(t, options{nodes: []string{"node-1", "node-2"}, controllerArgs: defaultPool})
	const ips = "fixedip.io/ips"
	held := e.in("node-1", "50")
	e.create(statefulSet("holder", 1, onTemplate(ips, held)))
	e.awaitRunning(nil, "holder-0")
	e.must(e.ownerEntry("node-2", ".50", namespace+"/other", "by hand"))
	outside := func(s *appsv1.StatefulSet) { s.Annotations = map[string]string{ips: "192.168.9.9"} }
	e.create(beforehand("taken", "taken-0", e.in("node-2", "50")), beforehand("far", "far-0", "192.168.9.10"))
	e.create(
		statefulSet("wants", 1, onTemplate(ips, held)),
		statefulSet("shares", 2, onTemplate(ips, held+","+e.in("node-1", "51"), "fixedip.io/ips-assignment", "any")),
		statefulSet("outside", 1, outside),
		statefulSet("malformed", 1, onTemplate(ips, "10.240.1.300")),
		statefulSet("few", 2, onTemplate(ips, e.in("node-1", "60"))),
		statefulSet("dynamic", 1, onTemplate(ips, e.in("node-1", "1"))),
		statefulSet("family", 1, onTemplate(ips, "fd00::1")),
		statefulSet("broadcast", 1, onTemplate(ips, e.in("node-1", "255"))),
		statefulSet("calico", 1, onTemplate("cni.projectcalico.org/ipAddrs", "10.240.1.10")),
		statefulSet("taken", 1), statefulSet("far", 1),
	)
	const annotated = " (annotation fixedip.io/ips)"
	for name, message := range map[string]string{
		"wants-0":     "requests " + held + annotated + ": IP " + held + " on node node-1 belongs to pod default/holder-0; request another address; this one becomes available when it has been released and its cooldown has ended",
		"outside-0":   "requests 192.168.9.9 (annotation fixedip.io/ips of StatefulSet outside): IP 192.168.9.9 is in no node's subnet; it becomes available when a node gets a subnet that contains it",
		"malformed-0": `requests addresses, but the value of annotation fixedip.io/ips is invalid: "10.240.1.300" is not an IP address; write an address (10.240.1.10), a range`,
		"few-1":       "requests addresses " + e.in("node-1", "60") + annotated + ", but that list has no IPv4 address for ordinal 1 (its first address is for ordinal 0); add addresses to the list, or scale down",
		"dynamic-0":   "requests " + e.in("node-1", "1") + annotated + ": IP " + e.in("node-1", "1") + " has a dynamic entry in the pool of node node-1, so that any pod may be using it; the controller removes that entry when a FixedIP reserves the IP and no pod uses it; otherwise request an address nearer to the top of the node's subnet",
		"family-0":    "requests fd00::1" + annotated + ", but the scheduler gives pods no IPv6 addresses; remove them from the annotation, or, if the Cilium agents assign IPv6 addresses, add IPv6 to ipFamilies in the configuration of fixedip",
		"broadcast-0": "requests " + e.in("node-1", "255") + annotated + ": IP " + e.in("node-1", "255") + " is the first or last address of a subnet of node node-1, which no pod can have; request another address",
		"calico-0":    `requests addresses, but the value of annotation cni.projectcalico.org/ipAddrs is invalid: the value is not a JSON list of one or more addresses; write a list such as ["10.240.1.10"]`,
		"far-0":       "address 192.168.9.10 of FixedIP far-0 is in no node's subnet; the pod waits until a node has a subnet that contains the address",
		"taken-0":     "node(s) couldn't give the pod an address: IP " + e.in("node-2", "50") + " on node node-2 belongs to pod default/other.",
	} {
		e.podMessage(name, message)
	}
	e.awaitRunning(nil, "few-0")
	// One of the two pods that share a list gets the free address; the other waits for the address of holder-0.
	e.await("wait for one of shares-0 and shares-1 to run and the other to report why it waits", func([]witness.Row) bool {
		waits, runs := e.witness.Pod(namespace, "shares-0"), e.witness.Pod(namespace, "shares-1")
		if waits == nil || runs == nil {
			return false
		}
		if waits.Status.PodIP != "" {
			waits, runs = runs, waits
		}
		return runs.Status.PodIP == e.in("node-1", "51") && slices.ContainsFunc(waits.Status.Conditions, func(c corev1.PodCondition) bool {
			return strings.Contains(c.Message, "node(s) had none of the requested IPv4 addresses available: "+held+", "+e.in("node-1", "51")+annotated)
		})
	})
	e.delete(statefulSet("shares", 2))

	// Each of these changes lets the scheduler place one pod: the address of holder-0 is released, the request is corrected on a
	// pod or on a StatefulSet, and a user removes an entry.
	e.delete(statefulSet("holder", 1))
	e.annotate(aPod("malformed-0"), ips, e.in("node-2", "60"))
	e.annotate(statefulSet("outside", 1), ips, e.in("node-2", "61"))
	e.must(e.api.Patch(within(t), &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "node-2"}},
		client.RawPatch(types.JSONPatchType, fmt.Appendf(nil, `[{"op":"remove","path":"/spec/ipam/pool/%s"}]`, e.in("node-2", "50")))))
	for name, r := range e.awaitRunning(nil, "wants-0", "malformed-0", "outside-0", "taken-0") {
		want := map[string]string{"wants-0": held, "malformed-0": e.in("node-2", "60"), "outside-0": e.in("node-2", "61"), "taken-0": e.in("node-2", "50")}[name]
		if r.Address != want {
			t.Errorf("pod %s has %s, want %s", name, r.Address, want)
		}
	}

	// The next events do not requeue pods that wait for something else.
	waiting := []string{"family-0", "dynamic-0", "broadcast-0", "few-1", "calico-0", "far-0"}
	attempts := e.refusals(waiting)
	before := e.awaitRunning(nil, "few-0", "wants-0")
	e.create(statefulSet("more", 2))
	e.awaitRunning(nil, "more-0", "more-1")
	e.deletePods("few-0", "wants-0")
	e.awaitRunning(before, "few-0", "wants-0")
	if again := e.refusals(waiting); !maps.Equal(again, attempts) {
		t.Errorf("pods that these events do not help were tried again: got %v refusals, want %v", again, attempts)
	}
}

// refusals returns the number of times that the scheduler has refused each pod, from its log. It fails the test if the
// scheduler has never refused one of the pods. Key: the pod name.
func (e *env) refusals(pods []string) map[string]int {
	e.t.Helper()
	log, err := os.ReadFile(e.scheduler.LogPath())
	e.must(err)
	out := map[string]int{}
	for _, p := range pods {
		out[p] = bytes.Count(log, fmt.Appendf(nil, "\"Unable to schedule pod; no fit; waiting\" pod=\"%s/%s\"", namespace, p))
		if out[p] == 0 {
			e.t.Errorf("the log of the scheduler contains no refusal of pod %s", p)
		}
	}
	return out
}

// TestRequestOfOneFamily checks that a pod that requests an address of one family gets any address of the other family, on
// the same node.
func TestRequestOfOneFamily(t *testing.T) {
	t.Parallel()
	e := start(t, options{
		controllerArgs: append([]string{"--cluster-pool-ipv6-cidr=fd00:240::/112", "--cluster-pool-ipv6-mask-size=120"}, defaultPool...),
		families:       []string{"IPv4", "IPv6"},
	})
	for _, n := range []string{"node-1", "node-2"} {
		e.startNode(n, "--ipv6")
	}
	for _, n := range []string{"node-1", "node-2"} {
		e.must(e.WaitNodeReady(e.whileAllRun(), n))
	}
	e.create(statefulSet("web", 2, onTemplate("fixedip.io/ips", e.in("node-2", "60")+","+e.in("node-1", "60"))))
	before := e.awaitRunning(nil, "web-0", "web-1")
	for name, want := range map[string]string{"web-0": e.in("node-2", "60"), "web-1": e.in("node-1", "60")} {
		if got := strings.Split(before[name].Address, ","); len(got) != 2 || got[0] != want || !strings.HasPrefix(got[1], "fd00:240::") {
			t.Errorf("pod %s has %v, want %s and an IPv6 address", name, got, want)
		}
	}
	e.deletePods("web-0", "web-1")
	e.sameAddresses(before, e.awaitRunning(before, "web-0", "web-1"))
}
