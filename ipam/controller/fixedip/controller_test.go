// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package fixedip

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	ipamtypes "github.com/cilium/cilium/pkg/ipam/types"
	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/controller/internal/allocate"
	"fixedip.io/fixedip/ipam/controller/internal/gather"
	"fixedip.io/fixedip/ipam/controller/internal/index"
	"fixedip.io/fixedip/ipam/controller/internal/source"
	"fixedip.io/fixedip/ipam/controller/release"
	"fixedip.io/fixedip/ipam/core/agentview"
	"fixedip.io/fixedip/ipam/core/identity"
	"fixedip.io/fixedip/ipam/core/pool"
	"fixedip.io/fixedip/ipam/core/reclaim"
	"fixedip.io/fixedip/ipam/scheme"
	"fixedip.io/fixedip/ipam/store/ciliumpool"
	"fixedip.io/fixedip/test/controllertest"
)

type stage struct {
	*controllertest.Stage
	t        *testing.T
	fixedips *Controller
	agents   agents
}

// agents answers every barrier request with evidence. If evidence is nil, the agents have not answered yet.
type agents struct {
	evidence *agentview.Evidence
	// asked are the nodes of the barrier requests, and forgotten the nodes whose answers were dropped.
	asked, forgotten []string
}

func (a *agents) Forget(node, _ string) { a.forgotten = append(a.forgotten, node) }

func (a *agents) Ask(node, _ string, _ func()) (agentview.Evidence, time.Time) {
	a.asked = append(a.asked, node)
	if a.evidence == nil {
		return agentview.Evidence{}, time.Time{}
	}
	return *a.evidence, controllertest.Begin
}

func newStage(t *testing.T, api, cached []client.Object) *stage {
	t.Helper()
	s := &stage{Stage: controllertest.New(t, index.Each, api, cached), t: t}
	s.fixedips = &Controller{
		Gatherer: &gather.Gatherer{
			Ledger: s.Ledger, Cached: s.Cached, Live: s.API, Workloads: s, Agents: &s.agents, Kinds: identity.NewKinds(), Events: s.Recorder, Clock: s.Clock,
			Deadline: 10 * time.Minute,
		},
		Batches: &release.Batches{Clock: s.Clock}, Writer: s.Writer, Allocator: &allocate.Allocator{Writer: s.Writer, Live: s.API, Clock: s.Clock},
		ResyncPeriod: source.ResyncPeriod, IdentityRequests: &source.Requests{}, SlotRequests: &source.Requests{},
	}
	return s
}

// TestSlotOfAnEndedPod checks that the slot of an ended pod, such as one that the kubelet has evicted, is free although
// the pod still exists (finding R6 in docs/project/findings.md).
func TestSlotOfAnEndedPod(t *testing.T) {
	slot := controllertest.Record(0, false)
	slot.Spec.AssignedTo = v1alpha1.Slot
	for phase, free := range map[corev1.PodPhase]bool{corev1.PodRunning: false, corev1.PodFailed: true, corev1.PodSucceeded: true} {
		pod := controllertest.Pod(0)
		pod.Status.Phase = phase
		objects := controllertest.Objects(slot, pod)
		s := newStage(t, objects, objects)
		states, err := s.fixedips.Slots(t.Context(), s.fixedips.FromCaches(), client.ObjectKey{Namespace: "db", Name: "StatefulSet/web"})
		i := slices.IndexFunc(states, func(s reclaim.State) bool { return s.Holder == "web-0" })
		if err != nil || i < 0 {
			t.Fatalf("phase %s: got %d slots and error %v, want a slot of web-0", phase, len(states), err)
		}
		if got := states[i].Pod == nil; got != free {
			t.Errorf("phase %s: got free = %t, want %t", phase, got, free)
		}
	}
}

// TestActionsThatNeedEvidence checks that an action that depends on a Cilium agent is written only if the answer of the
// agent and the pods on the node are sufficient evidence (finding S4 in docs/project/findings.md).
func TestActionsThatNeedEvidence(t *testing.T) {
	a := netip.MustParseAddr(controllertest.IP(0))
	slot := controllertest.Record(0, false)
	slot.Spec.AssignedTo = v1alpha1.Slot
	fixed := controllertest.Record(0, false)
	mine := pool.OwnedEntry("db", "web-0", "StatefulSet", "web")
	confirmed := &agentview.Evidence{Node: "n", Entries: map[netip.Addr]pool.Entry{a: mine}}
	withdrawn := &agentview.Evidence{Node: "n", Entries: map[netip.Addr]pool.Entry{a: pool.CooldownEntry("", controllertest.Begin)}}
	used := &agentview.Evidence{Node: "n", Entries: map[netip.Addr]pool.Entry{a: mine}, Used: map[netip.Addr]string{a: "db/web-0"}}
	starting := controllertest.Pod(1)
	starting.Spec.NodeName, starting.Status.PodIPs = "n", nil
	vacate := reclaim.Action{Type: reclaim.Vacate, Node: "n", Addrs: []netip.Addr{a}, Status: v1alpha1.FixedIPStatus{VacatedBy: "web-0"}}
	allow := reclaim.Action{Type: reclaim.AllowMove, Node: "n", Addrs: []netip.Addr{a}, Status: v1alpha1.FixedIPStatus{MovableFor: "uid-2"}}
	for name, c := range map[string]struct {
		record   *v1alpha1.FixedIP
		pods     []client.Object
		evidence *agentview.Evidence
		action   reclaim.Action
		want     v1alpha1.FixedIPStatus
		// unproved is true if the agent has answered, and the answer and the pods are not sufficient evidence.
		unproved bool
	}{
		"vacate: the address is not in use":                            {record: slot, evidence: confirmed, action: vacate, want: vacate.Status},
		"vacate: the agent has not answered":                           {record: slot, action: vacate, want: slot.Status},
		"vacate: the agent reports the address as used":                {record: slot, evidence: used, action: vacate, want: slot.Status, unproved: true},
		"vacate: the holder still exists":                              {record: slot, pods: controllertest.Objects(controllertest.Pod(0)), evidence: confirmed, action: vacate, want: slot.Status, unproved: true},
		"vacate: a pod has no IP yet, and the entry is in cooldown":    {record: slot, pods: controllertest.Objects(starting), evidence: withdrawn, action: vacate, want: slot.Status, unproved: true},
		"vacate: a pod has no IP yet, and the entry is the holder's":   {record: slot, pods: controllertest.Objects(starting), evidence: confirmed, action: vacate, want: vacate.Status},
		"allow a move: the address is not in use":                      {record: fixed, evidence: confirmed, action: allow, want: allow.Status},
		"allow a move: the agent reports the address as used":          {record: fixed, evidence: used, action: allow, want: fixed.Status, unproved: true},
		"own: the agent reports the address as used by the pod itself": {record: fixed, evidence: used, action: reclaim.Action{Type: reclaim.Own, Node: "n", Addrs: []netip.Addr{a}}, want: fixed.Status},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, append(controllertest.Objects(c.record), c.pods...), nil)
			s.agents.evidence = c.evidence
			var record v1alpha1.FixedIP
			if err := s.API.Get(t.Context(), client.ObjectKeyFromObject(c.record), &record); err != nil {
				t.Fatal(err)
			}
			state := reclaim.State{Slot: c.record.Spec.AssignedTo == v1alpha1.Slot, Record: &record, Holder: "web-0", Now: controllertest.Begin}
			again := reconcile.Request{NamespacedName: types.NamespacedName{Namespace: "db", Name: "web-0"}}
			err := s.fixedips.perform(t.Context(), again, state, c.action)
			if unproved := errors.As(err, new(*gather.NotProvedError)); unproved != c.unproved || errors.Is(err, gather.ErrAsked) != (c.evidence == nil) || err != nil && !unproved && c.evidence != nil {
				t.Errorf("got error %v, want a NotProvedError: %t, ErrAsked: %t", err, c.unproved, c.evidence == nil)
			}
			if diff := cmp.Diff([]string{"n"}, s.agents.asked); diff != "" {
				t.Errorf("nodes of the barrier requests (-want +got): %s", diff)
			}
			// An answer that shows a use which the ledger does not show is dropped, because it will not be sufficient later
			// either.
			if forgotten := len(s.agents.forgotten) > 0; forgotten != (c.evidence == used && c.unproved) {
				t.Errorf("got answer forgotten = %t, want %t", forgotten, !forgotten)
			}
			var now v1alpha1.FixedIP
			if err := s.API.Get(t.Context(), client.ObjectKeyFromObject(c.record), &now); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, now.Status); diff != "" {
				t.Errorf("status of the FixedIP (-want +got): %s", diff)
			}
		})
	}
}

// TestOptedOutPodOfAWorkload checks that a pod that opted out does not cause the release of the addresses that are
// reserved for its name, unless the template of its workload opts out too. The next pod of the name may have a fixed
// address.
func TestOptedOutPodOfAWorkload(t *testing.T) {
	for name, c := range map[string]struct {
		change   func(*corev1.Pod)
		template map[string]string
		released bool
	}{
		"the pod has no node": {change: func(*corev1.Pod) {}},
		"the pod is bound":    {change: func(p *corev1.Pod) { p.Spec.NodeName = "another" }},
		"the pod runs": {change: func(p *corev1.Pod) {
			p.Spec.NodeName, p.Status.PodIPs = "another", []corev1.PodIP{{IP: "10.0.2.9"}}
		}},
		"the pod is being deleted": {change: func(p *corev1.Pod) {
			p.Finalizers, p.DeletionTimestamp = []string{"test/finalizer"}, &metav1.Time{Time: controllertest.Begin}
		}},
		"the workload opted out too": {change: func(*corev1.Pod) {}, template: map[string]string{identity.AnnotationEnabled: "false"}, released: true},
	} {
		t.Run(name, func(t *testing.T) {
			pod := controllertest.Pod(0)
			pod.Spec.NodeName = ""
			pod.Status = corev1.PodStatus{}
			pod.Annotations = map[string]string{identity.AnnotationEnabled: "false"}
			c.change(pod)
			sts := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "web", UID: "web-1"}}
			sts.Spec.Template.Annotations = c.template
			s := newStage(t, nil, controllertest.Objects(controllertest.Record(0, false), pod, sts))
			state, _, err := s.fixedips.Identity(t.Context(), s.fixedips.FromCaches(), client.ObjectKeyFromObject(pod))
			if err != nil {
				t.Fatal(err)
			}
			if a := reclaim.Decide(state); (a.Type == reclaim.DeleteRecord) != c.released {
				t.Errorf("got action %s by rule %q, want DeleteRecord: %t", a.Type, a.Rule, c.released)
			}
		})
	}
}

// TestRequeueAfterFence checks that an identity is reconciled again within a second after FenceTarget, and so before the new
// cooldown entry is removed. No watch event queues the identity, because the cooldown entry names no pod.
func TestRequeueAfterFence(t *testing.T) {
	target := &ciliumv2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "m", UID: "other"}}
	target.Spec.IPAM.Pool = ipamtypes.AllocationMap{}
	s := newStage(t, controllertest.Objects(target), nil)
	home, _ := s.Ledger.Node("n")
	s.Ledger.SetNode(home.With([]pool.EntryChange{home.Set(netip.MustParseAddr(controllertest.IP(0)), pool.LeavingEntry("m", "db/web-0"))}))
	s.Ledger.SetNode(ciliumpool.FromCiliumNode(target))
	result, err := s.fixedips.Reconcile(t.Context(), source.ForOwner("db/web-0")[0])
	var now ciliumv2.CiliumNode
	if getErr := s.API.Get(t.Context(), client.ObjectKey{Name: "m"}, &now); err != nil || getErr != nil || now.Spec.IPAM.Pool[controllertest.IP(0)].Owner != controllertest.Cooldown {
		t.Fatalf("got entries %v of node m and errors %v, %v; want a cooldown entry of %s", now.Spec.IPAM.Pool, err, getErr, controllertest.IP(0))
	}
	if result.RequeueAfter <= 0 || result.RequeueAfter > time.Second {
		t.Errorf("got RequeueAfter %v, want at most a second", result.RequeueAfter)
	}
}

// TestReleaseEntriesWithPod checks that a pod prevents the release of the entries of its name only if it is bound to their
// node and runs with their address or has no IP yet. A pod that runs with another address does not prevent the release: a
// scheduler may have claimed the entries for a former pod. An owned entry that is missing in the state stays, because a move
// to the node has been completed meanwhile.
func TestReleaseEntriesWithPod(t *testing.T) {
	onOtherNode := controllertest.Pod(0)
	onOtherNode.Spec.NodeName = "another"
	withOther, withReleased := controllertest.Pod(0), controllertest.Pod(0)
	withOther.Status.PodIPs = []corev1.PodIP{{IP: "10.0.1.1"}}
	withReleased.Status.PodIPs = []corev1.PodIP{{IP: controllertest.IP(0)}}
	for name, c := range map[string]struct {
		pod        *corev1.Pod
		moveTarget bool
		released   bool
	}{
		"no pod":                                     {nil, false, true},
		"the pod is on another node":                 {onOtherNode, false, true},
		"the pod runs with another address":          {withOther, false, true},
		"the pod runs with the address":              {withReleased, false, false},
		"the pod has no IP yet":                      {controllertest.Pod(0), false, false},
		"a move to the node was completed meanwhile": {withOther, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			var api []client.Object
			if c.pod != nil {
				api = controllertest.Objects(c.pod)
			}
			s := newStage(t, api, nil)
			state := reclaim.State{Pod: c.pod}
			if has := s.Ledger.Held("db/web-0"); c.moveTarget {
				state.MoveTargets = has
			} else {
				state.Held = has
			}
			err := s.fixedips.releaseEntries(t.Context(), types.NamespacedName{Namespace: "db", Name: "web-0"}, state, reclaim.Action{Type: reclaim.ReleaseEntries, Node: "n"})
			if released := err == nil && strings.HasPrefix(s.Owners(), controllertest.Cooldown+" "); released != c.released || !released && !errors.Is(err, gather.ErrSuperseded) {
				t.Errorf("got owners %s and error %v, want the entry of web-0 released: %t, otherwise ErrSuperseded", s.Owners(), err, c.released)
			}
		})
	}
}

// TestBlockedReleaseIsReported checks that events on the FixedIP, if there is one, and on the pod that uses the address, if it
// exists, report why the address is not released. The event on the pod does not name an object of another namespace.
func TestBlockedReleaseIsReported(t *testing.T) {
	kinds, err := scheme.New()
	if err != nil {
		t.Fatal(err)
	}
	other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "other-0"}}
	blockers := []reclaim.ReleaseBlocker{
		{Addr: netip.MustParseAddr("10.0.1.6"), User: "web/other-0", Why: "IP 10.0.1.6 is in use"},
		{Addr: netip.MustParseAddr("10.0.1.7"), User: "web/gone-0", Why: "IP 10.0.1.7 is in use"},
		{Addr: netip.MustParseAddr("10.0.1.8"), Why: "IP 10.0.1.8 may be in use"},
	}
	onPod := "Warning WrongPodAddress The Cilium agent reports that this pod uses IP 10.0.1.6, which is reserved for a pod of another namespace and cannot be released before that use ends; if the pod runs with that IP, delete the pod"
	for name, c := range map[string]struct {
		record *v1alpha1.FixedIP
		want   []string
	}{
		"with a FixedIP":    {&v1alpha1.FixedIP{}, []string{"Warning ReleaseBlocked IP 10.0.1.6 is in use", onPod}},
		"without a FixedIP": {nil, []string{onPod}},
	} {
		recorder := events.NewFakeRecorder(10)
		r := &Controller{Gatherer: &gather.Gatherer{Cached: fake.NewClientBuilder().WithScheme(kinds).WithObjects(other).Build(), Events: recorder}}
		if err := r.reportBlocked(t.Context(), "db/mysql-0", reclaim.State{Record: c.record, Blockers: blockers}, "IP 10.0.1.6 is in use"); err != nil {
			t.Fatal(err)
		}
		close(recorder.Events)
		var got []string
		for e := range recorder.Events {
			got = append(got, e)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: events (-want +got): %s", name, diff)
		}
	}
}

// released updates the ledger as if the watch had shown the release of the entry of pod 0.
func (s *stage) released() {
	node, _ := s.Ledger.Node("n")
	s.Ledger.SetNode(node.With(node.Release("db/web-0", nil, controllertest.Begin)))
}

// releaseInFlight releases the address of pod 0. It calls check when the release is written and in the ledger, but not
// confirmed yet.
func (s *stage) releaseInFlight(check func()) {
	s.t.Helper()
	checked := false
	s.OnPatch = func() (func(), error) {
		return func() {
			s.released()
			check()
			checked = true
		}, nil
	}
	r := &release.Controller{Gatherer: s.fixedips.Gatherer, Batches: s.fixedips.Batches, Writer: s.Writer, Again: &source.Requests{}}
	r.Batches.Add("n", client.ObjectKeyFromObject(controllertest.Pod(0)))
	for {
		result, err := r.Reconcile(s.t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: "n"}})
		if err != nil {
			s.t.Fatal(err)
		}
		if result.RequeueAfter == 0 {
			break
		}
		s.Clock.Step(result.RequeueAfter)
	}
	if !checked {
		s.t.Error("the release controller wrote no release")
	}
}

// TestFinish checks that the finalizer of a FixedIP that is being deleted is removed if no pool entry names its pod. It
// must not be removed while the release of the address is in flight, because the release may still be undone.
func TestFinish(t *testing.T) {
	deleted := controllertest.Objects(controllertest.Record(0, true))
	for name, c := range map[string]struct {
		api, cached []client.Object
		held        bool
		inFlight    bool
		// gone is true if the FixedIP does not exist afterwards.
		gone bool
	}{
		"the address is released":       {api: deleted, cached: deleted, gone: true},
		"a pool has an entry":           {api: deleted, cached: deleted, held: true},
		"the address is being released": {api: deleted, cached: deleted, inFlight: true},
		"the FixedIP is not deleted":    {api: controllertest.Objects(controllertest.Record(0, false)), cached: controllertest.Objects(controllertest.Record(0, false))},
		"only the cache has a FixedIP":  {cached: deleted, gone: true},
		"there is no FixedIP":           {gone: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, c.api, c.cached)
			if !c.held && !c.inFlight {
				s.released()
			}
			check := func() {
				if _, err := s.fixedips.Reconcile(t.Context(), source.ForOwner("db/web-0")[0]); err != nil {
					t.Fatal(err)
				}
				var record v1alpha1.FixedIP
				err := s.API.Get(t.Context(), client.ObjectKeyFromObject(controllertest.Pod(0)), &record)
				if client.IgnoreNotFound(err) != nil || apierrors.IsNotFound(err) != c.gone {
					t.Errorf("read the FixedIP: got error %v and finalizers %v, want it gone: %t", err, record.Finalizers, c.gone)
				}
			}
			if c.inFlight {
				s.releaseInFlight(check)
			} else {
				check()
			}
		})
	}
}

// TestAddressOfAnotherFixedIP checks that no FixedIP is created with, or gets, an address that another FixedIP still names.
func TestAddressOfAnotherFixedIP(t *testing.T) {
	first, second := controllertest.Record(0, false), controllertest.Record(1, false)
	other := second.Spec.IPs[0]
	spec := first.Spec
	spec.IPs = append(slices.Clone(spec.IPs), "fd00::1", other)
	for name, records := range map[string][]client.Object{"a new FixedIP": {second}, "a FixedIP that gets an address": {first, second}} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, controllertest.Objects(records...), controllertest.Objects(records...))
			key := client.ObjectKeyFromObject(first)
			a := reclaim.Action{Type: reclaim.CreateRecord, Spec: spec}
			var state reclaim.State
			if len(records) > 1 {
				a.Type, state.Record = reclaim.UpdateRecord, first
			}
			if err := s.fixedips.perform(t.Context(), reconcile.Request{NamespacedName: key}, state, a); !errors.Is(err, gather.ErrSuperseded) || !strings.Contains(err.Error(), "FixedIP db/web-1 still has IP "+other) {
				t.Errorf("got error %v, want ErrSuperseded and FixedIP db/web-1", err)
			}
		})
	}
}
