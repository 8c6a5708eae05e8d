// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/scheme"
	"fixedip.io/fixedip/plugins/fixedip"
	"fixedip.io/fixedip/test/gen"
)

// stored contains the state that the rows compare: the pools, which the plugin writes, the FixedIPs, which it must not write,
// and the bindings of pods.
type stored struct {
	// Pools contains spec.ipam of the CiliumNodes. Key: the name of the node.
	Pools map[string]ipamtypes.IPAMSpec
	// FixedIPs contains the specs of the FixedIPs. Key: the name.
	FixedIPs map[string]v1alpha1.FixedIPSpec
	// Bound contains the nodes of the bound pods of the row's scheduler. Key: the name of the pod.
	Bound map[string]string
	// Writes is the number of patches of CiliumNodes by the scheduler.
	Writes int
}

// entry sets the owner and the resource of a pool entry.
func (s *stored) entry(node, addr, owner, resource string) {
	s.Pools[node].Pool[addr] = ipamtypes.AllocationIP{Owner: owner, Resource: resource}
}

// scene is the cluster of one row, and the objects that should be stored in it (want).
type scene struct {
	t      *testing.T
	api    client.WithWatch
	ns     string
	line   *line
	plugin *fixedip.Plugin
	// cached, cachedNodes and cachedQuotas list the pods, nodes and ResourceQuotas as the scheduler's watch shows them; nil
	// before the scheduler starts.
	cached       corelisters.PodLister
	cachedNodes  corelisters.NodeLister
	cachedQuotas corelisters.ResourceQuotaLister
	want         stored
	// prober is the StatefulSet of the pods that probe returns for first placements. It has no replicas.
	prober *appsv1.StatefulSet
	// flockUID is the UID of the workload whose pods have slots, if the row has one.
	flockUID types.UID
	// failing contains the message with which a point fails for a pod. Key: see key.
	failing map[string]string
	// reads is the number of reads of CiliumNode a at an earlier step. A later step compares the current number with reads.
	reads int
	// requeues is the result of the function requeues when the row last called storesRequeues.
	requeues int
	// passed counts the calls of each point for each pod. Key: see key.
	passed map[string]int
}

func key(pod string, p point) string { return pod + " " + string(p) }

func newScene(t *testing.T, ns string) *scene {
	t.Helper()
	kinds, err := scheme.New()
	if err != nil {
		t.Fatal(err)
	}
	api, err := client.NewWithWatch(admin, client.Options{Scheme: kinds})
	if err != nil {
		t.Fatal(err)
	}
	s := &scene{
		t: t, api: api, ns: ns, line: &line{},
		want: stored{
			Pools:    map[string]ipamtypes.IPAMSpec{},
			FixedIPs: map[string]v1alpha1.FixedIPSpec{},
			Bound:    map[string]string{},
		},
		failing: map[string]string{},
		passed:  map[string]int{},
	}
	s.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})
	// The controller of ServiceAccounts may create the default ServiceAccount first.
	s.must(client.IgnoreAlreadyExists(api.Create(within(t), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "default"}})))
	t.Cleanup(s.clear)
	s.prober = gen.StatefulSet(ns, "probe", 0, s.ofRow)
	s.create(s.prober)
	return s
}

// clear deletes all objects that the next row could see.
func (s *scene) clear() {
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	in := client.InNamespace(s.ns)
	for _, err := range []error{
		s.api.DeleteAllOf(ctx, &appsv1.StatefulSet{}, in, client.PropagationPolicy(metav1.DeletePropagationOrphan)),
		s.api.DeleteAllOf(ctx, &corev1.Pod{}, in, client.GracePeriodSeconds(0)),
		s.api.DeleteAllOf(ctx, &v1alpha1.FixedIP{}, in),
		s.api.DeleteAllOf(ctx, &ciliumv2.CiliumNode{}),
		s.api.DeleteAllOf(ctx, &corev1.Node{}),
	} {
		if err != nil {
			s.t.Error(err)
		}
	}
}

func (s *scene) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *scene) create(o client.Object) {
	s.t.Helper()
	s.must(s.api.Create(within(s.t), o))
}

// patch applies a merge patch to the object with the kind of o and the given name. A namespaced object is in the row's
// namespace.
func (s *scene) patch(o client.Object, name, data string) {
	s.t.Helper()
	o.SetName(name)
	switch o.(type) {
	case *corev1.Node, *ciliumv2.CiliumNode:
	default:
		o.SetNamespace(s.ns)
	}
	s.must(s.api.Patch(within(s.t), o, client.RawPatch(types.MergePatchType, []byte(data))))
}

// node creates a ready node with one CPU, and its CiliumNode with the given subnets.
func (s *scene) node(name string, subnets ...string) {
	s.t.Helper()
	s.nodeOnly(name)
	s.ciliumNode(name, subnets...)
}

// nodeOnly creates a Node without a CiliumNode.
func (s *scene) nodeOnly(name string) {
	s.t.Helper()
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{
			Capacity:    corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("1Gi"), "pods": resource.MustParse("100")},
			Allocatable: corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("1Gi"), "pods": resource.MustParse("100")},
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	s.create(n)
	// Admission taints every new node, and the node lifecycle controller removes the taint only later.
	s.patch(&corev1.Node{}, name, `{"spec":{"taints":null}}`)
}

// ciliumNode creates a CiliumNode with an empty pool whose agent has reported.
func (s *scene) ciliumNode(name string, subnets ...string) {
	s.t.Helper()
	s.unreportedCiliumNode(name, subnets...)
	s.reports(name, "router")
}

// unreportedCiliumNode creates a CiliumNode with an empty pool whose agent has not reported.
func (s *scene) unreportedCiliumNode(name string, subnets ...string) {
	s.t.Helper()
	cn := &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	cn.Spec.IPAM.PodCIDRs = subnets
	s.create(cn)
	s.want.Pools[name] = ipamtypes.IPAMSpec{PodCIDRs: subnets, Pool: ipamtypes.AllocationMap{}}
}

// reports writes a report of the agent of a node: owner uses an address outside all subnets. The node counts as unreported
// unless owner is one of pool.NodeOwners.
func (s *scene) reports(node, owner string) {
	s.t.Helper()
	cn := &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: node}}
	report := fmt.Sprintf(`{"status":{"ipam":{"used":{"192.0.2.1":{"owner":%q}}}}}`, owner)
	s.must(s.api.Status().Patch(within(s.t), cn, client.RawPatch(types.MergePatchType, []byte(report))))
}

func (s *scene) deleteCiliumNode(name string) {
	s.t.Helper()
	s.must(s.api.Delete(within(s.t), &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	delete(s.want.Pools, name)
}

// resubnet replaces the subnets of a node. Without subnets it removes them.
func (s *scene) resubnet(name string, subnets ...string) {
	s.t.Helper()
	list, err := json.Marshal(append([]string{}, subnets...))
	s.must(err)
	s.patch(&ciliumv2.CiliumNode{}, name, fmt.Sprintf(`{"spec":{"ipam":{"podCIDRs":%s}}}`, list))
	s.want.Pools[name] = ipamtypes.IPAMSpec{PodCIDRs: subnets, Pool: s.want.Pools[name].Pool}
}

// takes writes an entry without a resource, as a user would. The owner is a pod of the row's namespace.
func (s *scene) takes(owner, node, addr string) {
	s.t.Helper()
	owner = s.ns + "/" + owner
	s.patch(&ciliumv2.CiliumNode{}, node, fmt.Sprintf(`{"spec":{"ipam":{"pool":{%q:{"owner":%q}}}}}`, addr, owner))
	s.want.entry(node, addr, owner, "")
}

// frees removes an entry.
func (s *scene) frees(node, addr string) {
	s.t.Helper()
	s.patch(&ciliumv2.CiliumNode{}, node, fmt.Sprintf(`{"spec":{"ipam":{"pool":{%q:null}}}}`, addr))
	delete(s.want.Pools[node].Pool, addr)
}

// cordon cordons or uncordons a node. If the scheduler runs, it waits until the scheduler's watch shows the change, which
// later steps rely on.
func (s *scene) cordon(node string, yes bool) {
	s.t.Helper()
	s.patch(&corev1.Node{}, node, fmt.Sprintf(`{"spec":{"unschedulable":%t}}`, yes))
	if s.cachedNodes == nil {
		return
	}
	s.until(fmt.Sprintf("the scheduler's watch shows unschedulable %t on node %s", yes, node), func() bool {
		n, err := s.cachedNodes.Get(node)
		return err == nil && n.Spec.Unschedulable == yes
	})
}

// statefulSet creates a StatefulSet of one pod. The pod has the row's scheduler and no grace period.
func (s *scene) statefulSet(name string, change ...func(*corev1.PodTemplateSpec)) {
	s.t.Helper()
	sts := gen.StatefulSet(s.ns, name, 1, s.ofRow)
	for _, c := range change {
		c(&sts.Spec.Template)
	}
	s.create(sts)
}

// ofRow gives the pods of a StatefulSet the row's scheduler and no grace period.
func (s *scene) ofRow(sts *appsv1.StatefulSet) {
	sts.Spec.Template.Spec.SchedulerName, sts.Spec.Template.Spec.TerminationGracePeriodSeconds = s.ns, ptr.To[int64](0)
}

func (s *scene) podSpec() corev1.PodSpec {
	return corev1.PodSpec{
		SchedulerName:                 s.ns,
		TerminationGracePeriodSeconds: ptr.To[int64](0),
		Containers:                    []corev1.Container{{Name: "main", Image: "none"}},
	}
}

// annotated returns a function that gives a pod template one annotation.
func annotated(key, value string) func(*corev1.PodTemplateSpec) {
	return func(t *corev1.PodTemplateSpec) { t.Annotations = map[string]string{key: value} }
}

// removes deletes a pod at once. If the pod belongs to a StatefulSet, the StatefulSet controller creates the next pod.
func (s *scene) removes(pod string) {
	s.t.Helper()
	s.must(s.api.Delete(within(s.t), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: pod}}, client.GracePeriodSeconds(0)))
	delete(s.want.Bound, pod)
}

// enables sets the annotation fixedip.io/enabled of a pod to true, and waits until the scheduler's watch shows that.
func (s *scene) enables(pod string) {
	s.t.Helper()
	s.patch(&corev1.Pod{}, pod, `{"metadata":{"annotations":{"fixedip.io/enabled":"true"}}}`)
	s.until("the scheduler's watch shows the corrected annotation of pod "+pod, func() bool {
		p, err := s.cached.Pods(s.ns).Get(pod)
		return err == nil && p.Annotations["fixedip.io/enabled"] == "true"
	})
}

// createFixedIP creates the FixedIP of a StatefulSet pod, with the controller's finalizer.
func (s *scene) createFixedIP(pod, workload, node string, ips ...string) {
	s.t.Helper()
	spec := v1alpha1.FixedIPSpec{
		IPs: ips, NodeName: node, PodName: pod, AssignedTo: v1alpha1.PodName, Owner: v1alpha1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: workload},
		// These are the defaults of the CRD.
		Reclaim: v1alpha1.ReclaimPolicy{WhenDeleted: v1alpha1.Delete, WhenScaled: v1alpha1.Retain},
	}
	var of appsv1.StatefulSet
	if err := s.api.Get(within(s.t), client.ObjectKey{Namespace: s.ns, Name: workload}, &of); err == nil {
		spec.Owner.UID = of.UID
	}
	s.create(&v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: pod, Finalizers: []string{v1alpha1.Finalizer}}, Spec: spec})
	s.want.FixedIPs[pod] = spec
	s.t.Cleanup(func() {
		fip := &v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: pod}}
		err := s.api.Patch(context.Background(), fip, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))
		if client.IgnoreNotFound(err) != nil {
			s.t.Error(err)
		}
	})
}

// retains sets the retention of a FixedIP so that it stays when its workload is deleted or opts out.
func (s *scene) retains(pod string) {
	s.t.Helper()
	s.patch(&v1alpha1.FixedIP{}, pod, `{"spec":{"reclaim":{"whenDeleted":"Retain"}}}`)
	spec := s.want.FixedIPs[pod]
	spec.Reclaim.WhenDeleted = v1alpha1.Retain
	s.want.FixedIPs[pod] = spec
}

// deleteFixedIP removes the finalizers of a FixedIP and deletes it.
func (s *scene) deleteFixedIP(pod string) {
	s.t.Helper()
	s.patch(&v1alpha1.FixedIP{}, pod, `{"metadata":{"finalizers":null}}`)
	s.must(s.api.Delete(within(s.t), &v1alpha1.FixedIP{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: pod}}))
	delete(s.want.FixedIPs, pod)
}

// until waits until seen returns true. what describes that condition in the error.
func (s *scene) until(what string, seen func() bool) {
	s.t.Helper()
	err := wait.PollUntilContextCancel(within(s.t), 5*time.Millisecond, true, func(context.Context) (bool, error) { return seen(), nil })
	if err != nil {
		s.t.Fatalf("wait until %s: %v", what, err)
	}
}

// seesAt waits until PreFilter allows a pod of StatefulSet web only the node, so that the plugin has seen an entry or a FixedIP
// of the pod there.
func (s *scene) seesAt(pod, node string) {
	s.t.Helper()
	var set appsv1.StatefulSet
	s.must(s.api.Get(within(s.t), client.ObjectKey{Namespace: s.ns, Name: "web"}, &set))
	probe := s.probe(pod)
	probe.OwnerReferences[0].UID = set.UID
	s.until(fmt.Sprintf("PreFilter allows pod %s only node %s", pod, node), func() bool {
		result, status := s.plugin.PreFilter(s.t.Context(), framework.NewCycleState(), probe, nil)
		if !status.IsSuccess() {
			s.t.Fatal(status.AsError())
		}
		return result != nil && result.NodeNames.Equal(sets.New(node))
	})
}

// seesDeletion waits until the plugin's queueing hint for a new Node does not accept the node of a pod of StatefulSet web,
// because the FixedIP of the pod is being deleted. It does not call PreFilter, which would add the probe to the queue of
// waiting pods.
func (s *scene) seesDeletion(pod, node string) {
	s.t.Helper()
	events, err := s.plugin.EventsToRegister(s.t.Context())
	s.must(err)
	s.until(fmt.Sprintf("the plugin's hint does not accept node %s for pod %s", node, pod), func() bool {
		for _, e := range events {
			if e.Event.Resource == fwk.Node {
				hint, err := e.QueueingHintFn(klog.Background(), s.probe(pod), nil, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
				s.must(err)
				return hint == fwk.QueueSkip
			}
		}
		return false
	})
}

// seesFreeAddress waits until the plugin sees that a node has a free address for a new pod or, if free is false, has none.
func (s *scene) seesFreeAddress(node string, free bool) {
	s.t.Helper()
	info := framework.NewNodeInfo()
	info.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
	s.until(fmt.Sprintf("the plugin sees a free address on node %s: want %t", node, free), func() bool {
		probe, state := s.probe("probe-0"), framework.NewCycleState()
		if _, status := s.plugin.PreFilter(s.t.Context(), state, probe, nil); !status.IsSuccess() {
			s.t.Fatal(status.AsError())
		}
		return s.plugin.Filter(s.t.Context(), state, probe, info).IsSuccess() == free
	})
}

// probe returns a pod that is in no queue and not stored: a pod of the StatefulSet in prober if the name begins with "probe-",
// and otherwise a pod of StatefulSet web.
func (s *scene) probe(name string) *corev1.Pod {
	owner := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "web", Controller: ptr.To(true)}
	if strings.HasPrefix(name, s.prober.Name+"-") {
		owner.Name, owner.UID = s.prober.Name, s.prober.UID
	}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: s.ns, Name: name, UID: types.UID("probe"), OwnerReferences: []metav1.OwnerReference{owner},
	}}
}

// stored reads the stored objects from the API server.
func (s *scene) stored() stored {
	s.t.Helper()
	ctx := within(s.t)
	var nodes ciliumv2.CiliumNodeList
	var fips v1alpha1.FixedIPList
	var pods corev1.PodList
	s.must(s.api.List(ctx, &nodes))
	s.must(s.api.List(ctx, &fips, client.InNamespace(s.ns)))
	s.must(s.api.List(ctx, &pods, client.InNamespace(s.ns)))
	got := stored{Pools: map[string]ipamtypes.IPAMSpec{}, FixedIPs: map[string]v1alpha1.FixedIPSpec{}, Bound: map[string]string{}, Writes: s.line.written()}
	for _, n := range nodes.Items {
		got.Pools[n.Name] = n.Spec.IPAM
	}
	for _, r := range fips.Items {
		got.FixedIPs[r.Name] = r.Spec
	}
	for _, p := range pods.Items {
		if p.Spec.SchedulerName == s.ns && p.Spec.NodeName != "" {
			got.Bound[p.Name] = p.Spec.NodeName
		}
	}
	return got
}

// compare fails the row if the stored objects differ from want.
func (s *scene) compare(when string) {
	s.t.Helper()
	if diff := cmp.Diff(s.want, s.stored(), cmpopts.EquateEmpty()); diff != "" {
		s.t.Fatalf("%s: the stored objects differ (-want +got):\n%s", when, diff)
	}
}

// uses writes a report of the agent of a node: the pod uses the address, or, if pod is empty, no pod uses the address.
func (s *scene) uses(node, addr, pod string) {
	s.t.Helper()
	owner := "null"
	if pod != "" {
		owner = fmt.Sprintf(`{"owner":%q}`, s.ns+"/"+pod)
	}
	cn := &ciliumv2.CiliumNode{}
	cn.Name = node
	s.must(s.api.Status().Patch(within(s.t), cn, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"status":{"ipam":{"used":{%q:%s}}}}`, addr, owner))))
}
